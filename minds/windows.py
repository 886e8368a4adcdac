"""Rolling windows over outcomes: event-time slots in two rings inside a key's value.

A window is the slots that overlap its span up to now, the current one included: ten 1 s slots for 10 s, six
and thirty 10 s slots for 1 and 5 minutes. A slot is fine while its second is recent, then part of a coarse
one. What a ring forgets is decided by the highest record time stamp
that the key has seen, never by the events' own clocks: one router with a fast clock can't empty everybody's
windows, and the same records give the same rings in whatever order they are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Protocol

import msgspec

from minds.sketch import EMPTY, Sketch, compacted, merged, percentiles, sketch_of_values
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
    def queue_ms(self) -> float | None: ...
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
    ttft: Sketch = EMPTY
    tpot: Sketch = EMPTY
    queue: Sketch = EMPTY


SKETCHES = ("ttft", "tpot", "queue")
COUNTS = tuple(name for name in Cell.__struct_fields__ if name not in SKETCHES)
WIDTH = len(COUNTS)
PARTS = len(SKETCHES)
Slots = dict[int, Cell]
"""Slot number (epoch ms // slot length) to what ended in it."""


class Rings(msgspec.Struct):
    """The slots of one key: each outcome is in one of them, in a fine one while its second is recent."""

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
    for name in SKETCHES:
        value_ms = getattr(outcome, f"{name}_ms")
        if value_ms is not None:
            setattr(cell, name, merged(getattr(cell, name), sketch_of_values([value_ms])))


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


def take_counts(cell: Cell, other: Cell) -> None:
    """Take the counts of ``other`` from ``cell``."""
    for name in COUNTS:
        setattr(cell, name, getattr(cell, name) - getattr(other, name))


def add_cell(cell: Cell, other: Cell) -> None:
    """Add ``other`` to ``cell``."""
    add_counts(cell, other)
    if other.ttft:
        cell.ttft = merged(cell.ttft, other.ttft)
    if other.tpot:
        cell.tpot = merged(cell.tpot, other.tpot)
    if other.queue:
        cell.queue = merged(cell.queue, other.queue)


def add_slots(rings: Rings, slots: Slots, mark_ms: int) -> None:
    """Add fine slots to the rings of a key of the record time ``mark_ms``."""
    first = mark_ms // FINE_MS - FINE_SLOTS + 1
    for slot, cell in slots.items():
        if slot >= first:
            _add(rings.fine, slot, cell)
        else:
            _widen(rings, slot, cell, mark_ms)


def _widen(rings: Rings, slot: int, cell: Cell, mark_ms: int) -> None:
    """Add a fine slot to the coarse ring, unless no window reaches it any more."""
    wide, coarse = slot * FINE_MS // COARSE_MS, rings.coarse
    if wide > mark_ms // COARSE_MS - COARSE_SLOTS:
        if wide not in coarse and (before := coarse.get(wide - 1)) is not None:
            _compact(before)  # it is as good as complete, and stays for minutes
        _add(coarse, wide, cell)


def _add(ring: Slots, slot: int, other: Cell) -> None:
    cell = ring.get(slot)
    if cell is None:
        ring[slot] = copy(other)
    else:
        add_cell(cell, other)


def compact(slots: Slots) -> None:
    """Put the sketches of these cells in their one ordered form, in place: equal slots are equal then."""
    for cell in slots.values():
        _compact(cell)


def _compact(cell: Cell) -> None:
    cell.ttft, cell.tpot, cell.queue = compacted(cell.ttft), compacted(cell.tpot), compacted(cell.queue)


def forget_old(rings: Rings, mark_ms: int) -> None:
    """Move the slots that are not recent at the record time ``mark_ms`` to the coarse ring, and drop those
    that no window up to then or later can reach."""
    first = mark_ms // FINE_MS - FINE_SLOTS + 1
    for slot in sorted([slot for slot in rings.fine if slot < first]):
        _widen(rings, slot, rings.fine.pop(slot), mark_ms)
    first = mark_ms // COARSE_MS - COARSE_SLOTS + 1
    for slot in [slot for slot in rings.coarse if slot < first]:
        del rings.coarse[slot]


def window_stats(rings: Iterable[Rings], now_ms: int) -> list[WindowStats]:
    """The windows of 10 s, 1 min and 5 min up to now over the sum of these rings.

    Slots in the future (an event's clock ahead of ours) count once their time has come.
    """
    parts = list(rings)
    return [_window(parts, span_ms, now_ms) for span_ms in SPANS_MS]


def cells_of(rings: Rings, slot_ms: int, first: int, last: int) -> Iterator[Cell]:
    """The cells whose slots of ``slot_ms`` (FINE_MS or COARSE_MS) are from ``first`` to ``last``."""
    if slot_ms != FINE_MS:
        for slot, cell in rings.coarse.items():
            if first <= slot <= last:
                yield cell
    for slot, cell in rings.fine.items():
        if first <= slot * FINE_MS // slot_ms <= last:
            yield cell


def _window(rings: list[Rings], span_ms: int, now_ms: int) -> WindowStats:
    slot_ms = FINE_MS if span_ms // FINE_MS < FINE_SLOTS else COARSE_MS
    last = now_ms // slot_ms
    total = Cell()
    for part in rings:
        for cell in cells_of(part, slot_ms, last - span_ms // slot_ms + 1, last):
            add_cell(total, cell)
    return WindowStats(
        span_ms=span_ms,
        **{name: getattr(total, name) for name in COUNTS},
        ttft_ms=percentiles(total.ttft),
        tpot_ms=percentiles(total.tpot),
        queue_ms=percentiles(total.queue),
    )
