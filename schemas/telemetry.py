"""fleet.telemetry: what an engine said of itself when it was scraped."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, DurationMs, EpochMs, Event, Name, PoolId, Record
from schemas.readings import EngineCounters, EngineGauges

LatencyName = Literal["ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"]
"""To the first token; between two tokens; between tokens as a request's mean; waiting; computing the prompt;
generating; the whole request."""


class LatencyTotals(Record):
    """An engine's latency histogram: totals since its boot, so that reading one twice changes nothing.

    ``counts[i]`` is how many fell into ``(bounds_ms[i-1], bounds_ms[i]]``; one more count than bounds holds
    those above the last. ``minds.histograms`` makes mergeable sketches of what two of these differ in.
    """

    name: LatencyName
    bounds_ms: Annotated[list[DurationMs], Field(max_length=200)]
    counts: Annotated[list[Count], Field(min_length=1, max_length=201)]
    sum_ms: Annotated[float, Field(ge=0, le=1e18)]


class LoraAdapters(Record):
    """LoRA adapters that an engine says it has at work, by their names."""

    running: Annotated[list[Name], Field(max_length=1000)] = []
    waiting: Annotated[list[Name], Field(max_length=1000)] = []
    slots: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="How many adapters one batch can hold; None: not told."
    )


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
    latencies: Annotated[list[LatencyTotals], Field(max_length=7)] = Field(
        default=[], description="Those that changed since last told; totals within the boot."
    )
    lora: LoraAdapters | None = Field(default=None, description="None: the engine does not tell.")
