"""The capacity table: the keys of the owned partitions, and how they take rollups.

Most of what a rollup tells is cells of outcomes that come in turn: they replace nothing. These are kept for
later, at no more than their counts are added now, for all keys together. All else goes key by key by the
merge rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from minds.capacity.cell_columns import CellColumns
from minds.capacity.folds import State
from minds.capacity.kept_cells import together
from minds.capacity.live import Live
from minds.capacity.partials import Cells, Grouped, as_partials
from minds.capacity.window_bank import PLACES, CellRows, WindowBank
from minds.merge import SourceTurns
from minds.windows import WIDTH

KEPT_FOR_MS = 2_000
"""How long keys keep cells for later: percentiles wait for them."""
FIRST_LANES = 1_024


def phase_of(key: str) -> float:
    """A number from 0 to 1 for a key, always the same."""
    return crc32(key.encode()) / 2**32


class CapacityTable:
    """All keys. What changed since somebody last looked is in three sets that he clears."""

    def __init__(self) -> None:
        self.lives: dict[str, Live] = {}
        self.changed: set[str] = set()
        """Keys that took more than counts of outcomes."""
        self.counted: dict[int, dict[str, Live]] = {}
        """The others that took anything, by partition."""
        self.unstored: set[str] = set()
        """All whose state has changed."""
        self._bank = WindowBank(FIRST_LANES)
        self._turns = SourceTurns()
        self._kept: dict[tuple[int, str], list[CellColumns]] = {}
        self._merge_at_ms: dict[tuple[int, str], int] = {}

    def load(self, partition: int, key: str, state: State) -> Live:
        """Take over a key with the state that was stored."""
        live = self.lives[key] = Live(state, phase_of(key), self._bank)
        self._turns.learn(partition, state)
        return live

    def apply(
        self, partition: int, offset: int, grouped: Grouped, cells: list[Cells], now_ms: int
    ) -> tuple[list[str], int]:
        """Take the rollup at this offset: the keys that are new, and how many had taken it before."""
        if not all(self._comes_in_turn(partition, each) for each in cells):
            for each in cells:  # all of them: a key takes a rollup at once
                as_partials(grouped, each)
            cells = []
        new: list[str] = []
        skipped, rows = 0, CellRows()
        for key, partials in grouped.items():
            for partial in partials:
                self._turns.note(partition, partial)
            if self._live(key, new).apply(offset, partials, now_ms, rows):
                self.unstored.add(key)
                self.changed.add(key)
            else:
                skipped += 1
        rows.add_to(self._bank, now_ms)
        for each in cells:
            skipped += self._keep(partition, offset, each, now_ms, new)
        for each in cells:
            place = (partition, each.interval.source)
            # Sources have times of their own, or every two seconds one rollup would pay for all.
            first_ms = now_ms + int(phase_of(str(place)) * KEPT_FOR_MS)
            if now_ms >= self._merge_at_ms.setdefault(place, first_ms):
                self._merge_at_ms[place] = now_ms + KEPT_FOR_MS
                self._merge_kept(*place)
        return new, skipped

    def _live(self, key: str, new: list[str]) -> Live:
        live = self.lives.get(key)
        if live is None:
            live = self.lives[key] = Live(phase=phase_of(key), bank=self._bank)
            new.append(key)
        return live

    def _comes_in_turn(self, partition: int, cells: Cells) -> bool:
        """Whether its keys may merge it later: it replaces nothing that any of them holds."""
        interval, columns, others = cells
        turn = self._turns.of(partition, interval)
        if turn == "same":  # the other part of an interval that took two records
            return all(
                live.awaits(interval)
                for place, key in enumerate(columns.keys)
                if place not in others and (live := self.lives.get(key)) is not None
            )
        return turn == "next"

    def _keep(self, partition: int, offset: int, cells: Cells, now_ms: int, new: list[str]) -> int:
        """Have each key keep its cells for later; their counts show at once. Returns how many were known."""
        interval, columns, others = cells
        self._turns.note(partition, interval)
        self._kept.setdefault((partition, interval.source), []).append(columns)
        counted = self.counted.setdefault(partition, {})
        skipped, lanes = 0, []
        for place, key in enumerate(columns.keys):
            lane = -1
            if place not in others:
                live = self._live(key, new)
                if offset > live.applied:
                    lane = live.keep(offset, interval, columns, place, now_ms)
                    counted[key] = live
                else:
                    skipped += 1
            lanes.append(lane)
        self.unstored.update(counted)
        number_of = self._bank.number_of
        numbers: Any = np.array([number_of(boot) for boot in columns.boots], np.int64)
        boot_of = numbers[columns.boot_of]
        to = np.array(lanes, np.int64)
        self._bank.add(to, columns.ends, boot_of, columns.seconds, columns.counts, now_ms)
        return skipped

    def merge_kept(self) -> Iterator[set[str]]:
        """Have the keys merge what they keep: those of one source each time that the next ones are asked for,
        which are returned."""
        for partition, source in list(self._kept):
            yield self._merge_kept(partition, source)

    def _merge_kept(self, partition: int, source: str) -> set[str]:
        kept = self._kept.pop((partition, source), [])
        sums = {source: together(kept)} if len(kept) > 1 else {}
        keys = {key for columns in kept for key in columns.keys}
        for key in keys:
            if (live := self.lives.get(key)) is not None:
                live.settle(key, sums)
        return keys

    def counts(self, lanes: list[int], now_ms: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The windows' counts of keys by the lanes of their ``Live``, a row each, one window after the other;
        and whether they are sound: if not, the ``Live`` must be asked."""
        to = np.array(lanes, np.int64)
        self._bank.roll(to, now_ms)
        return self._bank.sums[to].reshape(len(to), PLACES * WIDTH), ~self._bank.ahead[to]

    def forget_idle(self, before_ms: int) -> list[str]:
        """Drop the keys of which nothing came since then, and return them."""
        idle = []
        for key, live in self.lives.items():
            if live.changed_at_ms >= before_ms:
                continue
            state = live.state
            newest = max([state.closed.mark_ms, *(held.delta.mark_ms for held in state.open.values())])
            if newest < before_ms:
                idle.append(key)
        for key in idle:
            self.lives.pop(key).forget()
            self.unstored.add(key)
        return idle
