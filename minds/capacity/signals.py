"""What else the log tells of an instance, kept beside its outcomes and registers: its engine's own latencies,
what is in flight, KV events. One part of a key's delta and of its total, absent where none of it was told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from minds.capacity import cache_events, engine_latency, in_flight
from minds.capacity.cache_events import CacheTold, add_cache_told, cache_readings
from minds.capacity.engine_latency import Latencies, Told, add_told, engine_window
from minds.capacity.in_flight import InFlight, add_flights, in_flight_of
from minds.windows import SPANS_MS
from schemas.fastpath import struct_of
from schemas.tables import EngineWindow

REFRESH_MS = (2_000, 10_000, 30_000)
"""How old an engine's percentiles may be, for each of ``SPANS_MS``: a window takes 27 us to read."""

_Window = struct_of(EngineWindow)


class SignalsDelta(msgspec.Struct, omit_defaults=True):
    """What one interval of one source partition adds."""

    latencies: Told = {}
    in_flight: InFlight = {}
    cache: CacheTold = {}


class SignalsTotal(msgspec.Struct, omit_defaults=True):
    """All that is kept."""

    latencies: Latencies = {}
    in_flight: InFlight = {}
    cache: CacheTold = {}


def add_signals(total: SignalsTotal | None, delta: SignalsDelta, mark_ms: int) -> SignalsTotal:
    """The total with the delta added, in place, and rid of what is too old at the record time ``mark_ms``."""
    if total is None:
        total = SignalsTotal({}, {}, {})
    if delta.latencies:
        add_told(total.latencies, delta.latencies)
        engine_latency.forget_old(total.latencies, mark_ms)
    if delta.in_flight:
        add_flights(total.in_flight, delta.in_flight)
        in_flight.forget_old(total.in_flight, mark_ms)
    if delta.cache:
        add_cache_told(total.cache, delta.cache)
        cache_events.forget_old(total.cache, mark_ms)
    return total


class SignalReadings:
    """The fields of an instance row that come of its signals; percentiles are kept for REFRESH_MS."""

    __slots__ = ("_boot", "_figures", "_read_at_ms")

    def __init__(self) -> None:
        self._boot = (0, "")
        self._read_at_ms = [0] * len(SPANS_MS)
        self._figures: list[dict[str, Any] | None] = [None] * len(SPANS_MS)

    def fields(
        self,
        closed: SignalsTotal | None,
        opened: Sequence[SignalsDelta],
        boot: tuple[int, str],
        now_ms: int,
    ) -> dict[str, Any]:
        """By name of schemas.tables.InstanceRow, for this boot (started at, name); unknown ones are absent.

        ``opened`` are those of the open partials.
        """
        if closed is None and not opened:
            return {}
        kept = closed if closed is not None else SignalsTotal()
        flights = in_flight_of([kept.in_flight, *[part.in_flight for part in opened]], boot[1], now_ms)
        told_at_ms, evicted = cache_readings([kept.cache, *[part.cache for part in opened]], boot[1], now_ms)
        return {
            "engine_windows": self._windows(kept.latencies, opened, boot, now_ms),
            "requests_in_flight": flights.requests,
            "work_tokens_in_flight": flights.work_tokens,
            "kv_events_at_ms": told_at_ms,
            "kv_evicted_blocks_per_s": evicted,
        }

    def _windows(
        self, latencies: Latencies, opened: Sequence[SignalsDelta], boot: tuple[int, str], now_ms: int
    ) -> list[Any]:
        if boot != self._boot:
            self._boot, self._read_at_ms = boot, [0] * len(SPANS_MS)
        told = [part.latencies for part in opened if part.latencies]
        if not latencies and not told:
            return []
        for place, refresh_ms in enumerate(REFRESH_MS):
            if now_ms - self._read_at_ms[place] >= refresh_ms:
                self._read_at_ms[place] = now_ms
                self._figures[place] = engine_window(latencies, told, boot, place, now_ms)
        return [
            _Window(span_ms=float(span_ms), **figures)
            for span_ms, figures in zip(SPANS_MS, self._figures, strict=True)
            if figures is not None
        ]
