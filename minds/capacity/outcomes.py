"""The fold of outcomes as stage one runs it: many at a time, and little for each.

A tally counts what ended within one second on one boot of one instance for one region. Figures that cost more
(sketches, the region's sums) are made once a flush, from the tallies. The result is the delta that
``minds.capacity.folds.fold_outcome`` makes one outcome at a time; a property test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from minds.capacity.folds import Delta, instance_key, region_key, signals_of
from minds.capacity.in_flight import InFlight, add_flights, count_end
from minds.sketch import sketch_of_values
from minds.windows import FINE_MS, LATE_AFTER_MS, Cell, add_cell
from schemas.base import NAME_PATTERN

FIELDS = (
    "pool",
    "entry_region",
    "region",
    "instance",
    "instance_boot",
    "cause",
    "at_ms",
    "ttft_ms",
    "tpot_ms",
    "queue_ms",
    "output_tokens",
    "wasted_tokens",
    "within_slo",
    "deadline_at_ms",
    "work_tokens",
)
"""What the fold needs of an outcome; a reader may decode only these (schemas.fastpath.projection_of)."""

OPTIONAL = ("deadline_at_ms",)
"""Of these, what a reader goes without: an outcome that does not tell its deadline counts in no flight."""

_NAME = re.compile(NAME_PATTERN)
TallyKey = tuple[str, str | None, str | None, str, int]
"""Pool, instance, boot, region, second."""


class Tally:
    """What one interval counted of one tally key. The usual costs least: only exceptions are set apart."""

    __slots__ = (
        "attempts",
        "missed",
        "missed_tokens",
        "others",
        "output_tokens",
        "queue_ms",
        "tpot_ms",
        "ttft_ms",
        "wasted_tokens",
    )

    def __init__(self) -> None:
        self.attempts = 0
        self.output_tokens = 0
        self.wasted_tokens = 0
        self.missed = 0
        self.missed_tokens = 0
        self.others: dict[str, int] = {}
        self.ttft_ms: list[float] = []
        self.tpot_ms: list[float] = []
        self.queue_ms: list[float] = []

    def cell(self) -> Cell:
        """The counts as a slot of a window."""
        others = self.others
        return Cell(
            attempts=self.attempts,
            ok=self.attempts - sum(others.values()),
            good=self.attempts - self.missed,
            output_tokens=self.output_tokens,
            good_tokens=self.output_tokens - self.missed_tokens,
            wasted_tokens=self.wasted_tokens,
            ttft=sketch_of_values(self.ttft_ms),
            tpot=sketch_of_values(self.tpot_ms),
            queue=sketch_of_values(self.queue_ms),
            **others,
        )


class OutcomeFold:
    """The outcomes of one interval of one source."""

    __slots__ = ("flights", "late", "tallies")

    def __init__(self) -> None:
        self.tallies: dict[TallyKey, Tally] = {}
        self.late: dict[str, int] = {}
        self.flights: dict[str, InFlight] = {}

    def take(self, outcomes: Iterable[Any], not_before_ms: float, not_after_ms: float) -> list[Any]:
        """Fold what is plain; returns the outcomes that want a closer look (``take_one``).

        Plain is what has sound names and ended between the two times. The loop runs for every event there is:
        keep it lean.
        """
        tallies = self.tallies
        get = tallies.get
        odd: list[Any] = []
        for outcome in outcomes:
            at_ms = outcome.at_ms
            if not not_before_ms <= at_ms <= not_after_ms:
                odd.append(outcome)
                continue
            region = outcome.region
            if region is None:
                region = outcome.entry_region
            key = (outcome.pool, outcome.instance, outcome.instance_boot, region, at_ms // FINE_MS)
            tally = get(key)
            if tally is None:
                if not names_are_sound(outcome):
                    odd.append(outcome)
                    continue
                tally = tallies[key] = Tally()
            tally.attempts += 1
            self._ended(outcome)
            tokens = outcome.output_tokens
            if tokens:
                tally.output_tokens += tokens
            value = outcome.ttft_ms
            if value is not None:
                tally.ttft_ms.append(value)
            value = outcome.tpot_ms
            if value is not None:
                tally.tpot_ms.append(value)
            value = outcome.queue_ms
            if value is not None:
                tally.queue_ms.append(value)
            if not outcome.within_slo:
                tally.missed += 1
                tally.missed_tokens += tokens or 0
            cause = outcome.cause
            if cause != "ok":
                tally.others[cause] = tally.others.get(cause, 0) + 1
            if outcome.wasted_tokens:
                tally.wasted_tokens += outcome.wasted_tokens
        return odd

    def take_one(self, outcome: Any, record_ms: int) -> None:
        """Fold one outcome of sound names whose clock was looked at: in its window, or counted as late."""
        if record_ms - outcome.at_ms > LATE_AFTER_MS:
            self._ended(outcome)
            if outcome.instance is not None:
                key = instance_key(outcome.pool, outcome.instance)
            else:
                key = region_key(outcome.region or outcome.entry_region, outcome.pool)
            self.late[key] = self.late.get(key, 0) + 1
            return
        self.take((outcome,), outcome.at_ms, outcome.at_ms)

    def _ended(self, outcome: Any) -> None:
        if outcome.instance is not None:
            count_end(self.flights.setdefault(instance_key(outcome.pool, outcome.instance), {}), outcome)

    def deltas(self, mark_ms: int) -> dict[str, Delta]:
        """The deltas of all keys: each instance's, and each region and pool's over all its outcomes."""
        deltas: dict[str, Delta] = {}
        for (pool, instance, boot, region, slot), tally in self.tallies.items():
            cell = tally.cell()
            if instance is not None:
                key = instance_key(pool, instance)
                delta = deltas.get(key)
                if delta is None:
                    delta = deltas[key] = Delta(mark_ms)
                _put(delta, boot or "", slot, cell)
            key = region_key(region, pool)
            delta = deltas.get(key)
            if delta is None:
                delta = deltas[key] = Delta(mark_ms)
            held = delta.cells.setdefault("", {})
            if slot not in held:
                held[slot] = Cell()
            add_cell(held[slot], cell)
        for key, flights in self.flights.items():
            add_flights(signals_of(deltas.setdefault(key, Delta(mark_ms))).in_flight, flights)
        for key, count in self.late.items():
            deltas.setdefault(key, Delta(mark_ms)).late += count
        return deltas


def _put(delta: Delta, boot: str, slot: int, cell: Cell) -> None:
    slots = delta.cells.setdefault(boot, {})
    held = slots.get(slot)
    if held is None:
        slots[slot] = cell
    else:
        add_cell(held, cell)


def names_are_sound(outcome: Any) -> bool:
    """Whether the names that keys are made of hold only what names may hold."""
    names = (outcome.pool, outcome.instance, outcome.instance_boot, outcome.region, outcome.entry_region)
    return all(name is None or _NAME.match(name) is not None for name in names)


def keys_are_sound(event: Any) -> bool:
    """The same of a decision's or a KV event's pool and instance."""
    return all(name is None or _NAME.match(name) is not None for name in (event.pool, event.instance))
