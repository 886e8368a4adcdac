"""What no engine can truly report. A scrape that says such a thing is not used at all: its last good values
age out, and the instance is in quarantine until it has said nothing impossible for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOST_TOKENS_PER_S = 1_000_000.0
"""Of one instance; ten times what the fastest eight-GPU servers were measured at."""
MOST_REQUESTS = 1_000_000.0
QUARANTINE_MS = 30_000.0


def impossible_reading(event: Any) -> str | None:
    """A sentence about the first reading of this telemetry event that can't be true, or None."""
    for name in ("requests_running", "requests_waiting", "kv_capacity_tokens", "kv_block_tokens"):
        value = getattr(event.gauges, name).value
        if value is not None and value < 0:
            return f"{name} is negative ({value:g})."
    for name in ("requests_running", "requests_waiting"):
        value = getattr(event.gauges, name).value
        if value is not None and value > MOST_REQUESTS:
            return f"{name} is {value:g}, more than any engine holds."
    usage = event.gauges.kv_usage_ratio.value
    if usage is not None and not 0 <= usage <= 1:
        return f"kv_usage_ratio is {usage:g}, not between 0 and 1."
    for name in COUNTER_NAMES:
        value = getattr(event.counters, name).value
        if value is not None and value < 0:
            return f"{name} is negative ({value:g})."
    return None


COUNTER_NAMES = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "preemptions_total",
    "requests_finished_total",
)


def impossible_rate(rates: Iterable[tuple[str, float]]) -> str | None:
    """The same of rates per second by counter name."""
    for name, per_s in rates:
        if per_s > MOST_TOKENS_PER_S:
            return f"{name} grew by {per_s:,.0f} a second."
    return None
