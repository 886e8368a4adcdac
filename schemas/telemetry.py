"""fleet.telemetry: what an engine said of itself when it was scraped."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import DurationMs, EpochMs, Event, Name, PoolId
from schemas.readings import EngineCounters, EngineGauges


class Telemetry(Event):
    """One scrape of one engine rank. Region and pools ride along so that no join is needed."""

    schema_name: ClassVar[str] = "telemetry"
    key_fields: ClassVar[tuple[str, ...]] = ("instance", "region", "pools")

    instance: Name
    boot: Name
    boot_started_at_ms: EpochMs = Field(description="Orders the boots of an instance.")
    engine: Name = Field(description="Which kind of engine: vllm, sglang, llama.cpp, ...")
    rank: Annotated[int, Field(ge=0, le=4096)] = 0
    region: Name
    pools: Annotated[list[PoolId], Field(min_length=1, max_length=64)]
    at_ms: EpochMs
    reachable: bool = Field(description="False: the engine did not answer; all readings are unknown.")
    scrape_ms: DurationMs | None = None
    gauges: EngineGauges = EngineGauges()
    counters: EngineCounters = EngineCounters()
