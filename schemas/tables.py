"""fleet.instances and fleet.regions: the capacity tables that routers trust."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, DurationMs, EpochMs, Name, PoolId, Record, Row, Sentence
from schemas.readings import UNKNOWN, EngineGauges, Percentiles, Quality, Reading, WindowStats

InstanceState = Literal["ready", "degraded", "draining", "unreachable", "unknown"]
GpuState = Literal["ok", "degraded", "lost", "unknown"]


class GpuHealth(Record):
    """How the GPUs of an instance are; ``unknown`` where nothing ties it to any, or none was heard of."""

    state: GpuState = "unknown"
    quality: Quality = "unknown"
    age_ms: DurationMs | None = Field(default=None, description="Of the oldest sample that it rests on.")
    reasons: Annotated[list[Sentence], Field(max_length=16)] = Field(
        default=[], description="What is wrong, GPU by GPU."
    )


class EngineWindow(Record):
    """What an engine measured itself over the last ``span_ms``, from its own histograms.

    ``ttft_ms`` counts from the request's arrival at the engine, ``queue_ms`` is its wait there; ``itl_ms`` is
    the time between two tokens, ``tpot_ms`` a request's mean of it. Absent: not told, or nothing measured.
    """

    span_ms: DurationMs
    ttft_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    queue_ms: Percentiles | None = None


class LinkReading(Record):
    """The way from a row's region to another: what was measured, and what operators say of it."""

    to_region: Name
    rtt_ms: Reading = UNKNOWN
    loss_ratio: Reading = UNKNOWN
    bandwidth_mbit_per_s: Reading = UNKNOWN
    egress_usd_per_gib: Reading = Field(
        default=UNKNOWN, description="Price of a GiB that leaves the row's region for the other."
    )


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
    gpu_health: GpuHealth = GpuHealth()
    engine_windows: list[EngineWindow] = Field(
        default=[], description="10 s, 1 min, 5 min of the engine's own latencies; empty: it tells none."
    )
    requests_in_flight: Reading = Field(
        default=UNKNOWN, description="By the log: decisions for its boot that have no outcome yet."
    )
    work_tokens_in_flight: Reading = Field(default=UNKNOWN, description="Their work, as it was predicted.")
    kv_events_at_ms: EpochMs | None = Field(
        default=None, description="Newest KV event of its boot; None: its cache's content is not told."
    )
    kv_evicted_blocks_per_s: Reading = Field(
        default=UNKNOWN, description="Fleet blocks that left its cache, over the last minute."
    )

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
    requests_in_flight: Reading = Field(
        default=UNKNOWN, description="By the log, over instances that serve: dispatched and not ended."
    )
    work_tokens_in_flight: Reading = Field(default=UNKNOWN, description="Their work, as it was predicted.")
    links: list[LinkReading] = Field(default=[], description="To every other region that is known.")

    def key(self) -> str:
        return f"{self.region}|{self.pool}"
