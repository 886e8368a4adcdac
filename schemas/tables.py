"""fleet.instances and fleet.regions: the capacity tables that routers trust."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, EpochMs, Name, PoolId, Row
from schemas.readings import UNKNOWN, EngineGauges, Reading, WindowStats

InstanceState = Literal["ready", "degraded", "draining", "unreachable", "unknown"]


class InstanceRow(Row):
    """One instance's rolling figures, of its current boot only."""

    schema_name: ClassVar[str] = "instance"

    instance: Name
    boot: Name
    boot_started_at_ms: EpochMs
    engine: Name
    region: Name
    pools: Annotated[list[PoolId], Field(min_length=1)]
    state: InstanceState
    sampled_at_ms: EpochMs | None = Field(default=None, description="When the gauges were read.")
    gauges: EngineGauges = EngineGauges()
    prefill_tokens_per_s: Reading = UNKNOWN
    decode_tokens_per_s: Reading = UNKNOWN
    prefix_hit_ratio: Reading = UNKNOWN
    preemptions_per_s: Reading = UNKNOWN
    kv_used_tokens: Reading = Field(default=UNKNOWN, description="Tokens in flight: in the KV cache now.")
    kv_free_tokens: Reading = UNKNOWN
    quarantined: bool = Field(default=False, description="It has just said something impossible.")
    windows: list[WindowStats] = Field(default=[], description="10 s, 1 min, 5 min.")
    late_events: Count = Field(default=0, description="Outcomes too old for any window.")

    def key(self) -> str:
        return self.instance


class RegionRow(Row):
    """One region's figures for one pool: only ready endpoints of exactly this version count."""

    schema_name: ClassVar[str] = "region"

    region: Name
    pool: PoolId
    ready_endpoints: Count
    known_endpoints: Count
    requests_running: Reading = UNKNOWN
    requests_waiting: Reading = UNKNOWN
    kv_usage_ratio: Reading = UNKNOWN
    prefill_tokens_per_s: Reading = UNKNOWN
    decode_tokens_per_s: Reading = UNKNOWN
    kv_used_tokens: Reading = Field(default=UNKNOWN, description="Tokens in flight: in KV caches now.")
    kv_free_tokens: Reading = UNKNOWN
    staleness_ms: Reading = Field(
        default=UNKNOWN, description="Age of the oldest sample among instances that serve."
    )
    knee_tokens_per_s: Reading = Field(
        default=UNKNOWN,
        description="Service rate at the knee: the most that instances that serve have decoded while "
        "requests waited, in their boots; unknown until each of them was seen so.",
    )
    ceiling_tokens_per_s: Reading = Field(default=UNKNOWN, description="0.85 of the knee.")
    predicted_wait_ms: Reading = Field(
        default=UNKNOWN,
        description="Requests waiting, at a minute's mean of output tokens, by the decode rate.",
    )
    cap_work_tokens: Reading = UNKNOWN
    leased_work_tokens: Reading = UNKNOWN
    headroom_work_tokens: Reading = UNKNOWN
    windows: list[WindowStats] = []

    def key(self) -> str:
        return f"{self.region}|{self.pool}"
