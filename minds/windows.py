"""Rolling windows over outcomes: event-time slots in two rings inside a key's value.

A window is the slots that overlap its span up to now, the current one included: ten 1 s slots for 10 s, six
and thirty 10 s slots for 1 and 5 minutes. What a ring forgets is decided by the highest record time stamp
that the key has seen, never by the events' own clocks: one router with a fast clock can't empty everybody's
windows, and the same records give the same rings in whatever order they are merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from minds.sketch import Sketch, insert, merge_into, percentiles
from schemas.readings import WindowStats

FINE_MS = 1_000
COARSE_MS = 10_000
FINE_SLOTS = 15
COARSE_SLOTS = 34
SPANS_MS = (10_000, 60_000, 300_000)
LATE_AFTER_MS = SPANS_MS[-1]
"""An outcome that is older than this when it reaches the log is in no window; it is counted as late."""


class OutcomeLike(Protocol):
    """What a window needs of an outcome, as a pydantic model or as a struct of the fast path."""

    @property
    def at_ms(self) -> int: ...
    @property
    def cause(self) -> str: ...
    @property
    def within_slo(self) -> bool: ...
    @property
    def ttft_ms(self) -> float | None: ...
    @property
    def tpot_ms(self) -> float | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def wasted_tokens(self) -> int | None: ...


class Cell(msgspec.Struct, array_like=True):
    """What ended within one slot."""

    attempts: int = 0
    ok: int = 0
    good: int = 0
    timeout: int = 0
    cancelled: int = 0
    failed: int = 0
    shed: int = 0
    lost: int = 0
    output_tokens: int = 0
    good_tokens: int = 0
    wasted_tokens: int = 0
    ttft: Sketch = {}
    tpot: Sketch = {}


_COUNTS = tuple(name for name in Cell.__struct_fields__ if name not in ("ttft", "tpot"))
Slots = dict[int, Cell]
"""Slot number (epoch ms // slot length) to what ended in it."""


class Rings(msgspec.Struct):
    """The slots of one key, fine and coarse; each outcome is in both."""

    fine: Slots = {}
    coarse: Slots = {}


def count_outcome(slots: Slots, outcome: OutcomeLike) -> None:
    """Count one outcome in its fine slot."""
    cell = slots.get(outcome.at_ms // FINE_MS)
    if cell is None:
        cell = slots[outcome.at_ms // FINE_MS] = Cell()
    cell.attempts += 1
    setattr(cell, outcome.cause, getattr(cell, outcome.cause) + 1)
    output_tokens = outcome.output_tokens or 0
    cell.output_tokens += output_tokens
    cell.wasted_tokens += outcome.wasted_tokens or 0
    if outcome.within_slo:
        cell.good += 1
        cell.good_tokens += output_tokens
    if outcome.ttft_ms is not None:
        insert(cell.ttft, outcome.ttft_ms)
    if outcome.tpot_ms is not None:
        insert(cell.tpot, outcome.tpot_ms)


def add_counts(cell: Cell, other: Cell) -> None:
    """Add the counts of ``other`` to ``cell``; its sketches stay out."""
    cell.attempts += other.attempts
    cell.ok += other.ok
    cell.good += other.good
    cell.output_tokens += other.output_tokens
    cell.good_tokens += other.good_tokens
    cell.wasted_tokens += other.wasted_tokens
    if other.ok != other.attempts:
        cell.timeout += other.timeout
        cell.cancelled += other.cancelled
        cell.failed += other.failed
        cell.shed += other.shed
        cell.lost += other.lost


def add_cell(cell: Cell, other: Cell) -> None:
    """Add ``other`` to ``cell``."""
    add_counts(cell, other)
    merge_into(cell.ttft, other.ttft)
    merge_into(cell.tpot, other.tpot)


def add_slots(rings: Rings, slots: Slots) -> None:
    """Add fine slots to both rings."""
    for slot, other in slots.items():
        _add(rings.fine, slot, other)
        _add(rings.coarse, slot * FINE_MS // COARSE_MS, other)


def _add(ring: Slots, slot: int, other: Cell) -> None:
    cell = ring.get(slot)
    if cell is None:
        cell = ring[slot] = Cell()
    add_cell(cell, other)


def forget_old(rings: Rings, mark_ms: int) -> None:
    """Drop the slots that no window up to the record time ``mark_ms`` or later can reach."""
    for ring, slot_ms, keep in ((rings.fine, FINE_MS, FINE_SLOTS), (rings.coarse, COARSE_MS, COARSE_SLOTS)):
        first = mark_ms // slot_ms - keep + 1
        for slot in [slot for slot in ring if slot < first]:
            del ring[slot]


def window_stats(rings: Iterable[Rings], now_ms: int) -> list[WindowStats]:
    """The windows of 10 s, 1 min and 5 min up to now over the sum of these rings.

    Slots in the future (an event's clock ahead of ours) count once their time has come.
    """
    parts = list(rings)
    return [_window(parts, span_ms, now_ms) for span_ms in SPANS_MS]


def _window(rings: list[Rings], span_ms: int, now_ms: int) -> WindowStats:
    slot_ms = FINE_MS if span_ms // FINE_MS < FINE_SLOTS else COARSE_MS
    last = now_ms // slot_ms
    total = Cell()
    for part in rings:
        ring = part.fine if slot_ms == FINE_MS else part.coarse
        for slot, cell in ring.items():
            if last - span_ms // slot_ms < slot <= last:
                add_cell(total, cell)
    return WindowStats(
        span_ms=span_ms,
        **{name: getattr(total, name) for name in _COUNTS},
        ttft_ms=percentiles(total.ttft),
        tpot_ms=percentiles(total.tpot),
    )
