"""Three-valued readings: fresh, stale or unknown, each with its age. Missing is unknown, never 0."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import DurationMs, Record

Quality = Literal["fresh", "stale", "unknown"]


class Reading(Record):
    """One figure and how far to trust it. ``value`` is None exactly where the quality is unknown."""

    value: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None
    quality: Quality = "unknown"
    age_ms: DurationMs | None = Field(default=None, description="Age of the value when the record was made.")


UNKNOWN = Reading()


class EngineGauges(Record):
    """What an engine says of this moment. Tokens are counted by the engine's own tokenizer."""

    requests_running: Reading = UNKNOWN
    requests_waiting: Reading = UNKNOWN
    kv_usage_ratio: Reading = UNKNOWN
    kv_capacity_tokens: Reading = UNKNOWN
    kv_block_tokens: Reading = UNKNOWN


class EngineCounters(Record):
    """Totals since the engine's boot; a fall within a boot is a reset, never a negative rate."""

    prompt_tokens_total: Reading = UNKNOWN
    prompt_tokens_cached_total: Reading = UNKNOWN
    generation_tokens_total: Reading = UNKNOWN
    prefix_queries_tokens_total: Reading = UNKNOWN
    prefix_hits_tokens_total: Reading = UNKNOWN
    preemptions_total: Reading = UNKNOWN
    requests_finished_total: Reading = UNKNOWN


class Percentiles(Record):
    """Percentiles of a window in milliseconds, from a sketch of stated relative accuracy."""

    p50: DurationMs
    p90: DurationMs
    p95: DurationMs
    p99: DurationMs


class WindowStats(Record):
    """Outcomes that closed within the last ``span_ms``; absent percentiles mean nothing was measured."""

    span_ms: DurationMs
    attempts: Annotated[int, Field(ge=0)] = 0
    ok: Annotated[int, Field(ge=0)] = 0
    good: Annotated[int, Field(ge=0, description="Attempts that ended ok within their service level.")] = 0
    timeout: Annotated[int, Field(ge=0)] = 0
    cancelled: Annotated[int, Field(ge=0)] = 0
    failed: Annotated[int, Field(ge=0)] = 0
    shed: Annotated[int, Field(ge=0)] = 0
    lost: Annotated[int, Field(ge=0)] = 0
    output_tokens: Annotated[int, Field(ge=0)] = 0
    good_tokens: Annotated[int, Field(ge=0)] = 0
    wasted_tokens: Annotated[int, Field(ge=0)] = 0
    ttft_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    queue_ms: Percentiles | None = Field(default=None, description="Wait at the router before dispatch.")
