"""The one place where shells read the time."""

from __future__ import annotations

import time


def now_ms() -> int:
    """UTC milliseconds since 1970 (events, rows)."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> float:
    """Milliseconds of a clock that never goes back (leases, durations); its zero means nothing."""
    return time.monotonic() * 1000.0
