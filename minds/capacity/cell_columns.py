"""Cells of many keys as arrays: what one interval of one source adds to the windows, in bulk.

An object a cell costs 10 us on its way from stage one to a row. As columns they are summed by compiled code
(``minds.capacity.window_bank``), and a key's cells become objects only when its state is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minds.windows import PARTS, WIDTH, Cell, Slots, add_cell

_ROW_BYTES = 8 * (WIDTH + 2 + PARTS)


class CellLists(NamedTuple):
    """The columns as lists: Python reads these ten times as fast, an element at a time."""

    ends: list[int]
    boot_of: list[int]
    seconds: list[int]
    counts: list[list[int]]
    sketch_ends: list[int]


class CellColumns:
    """A row a key, boot and second; the rows of a key are together.

    ``ends[k]`` is the row after the last one of key ``k``; ``boot_of`` numbers ``boots``; ``seconds`` are
    fine slots; ``counts`` is (rows, len(COUNTS)). ``sketches`` holds ``SKETCHES`` row by row, and
    ``sketch_ends`` (len(SKETCHES) a row) where each ends in it. ``mark_ms`` is the highest record time stamp
    of the interval.
    """

    __slots__ = (
        "_lists",
        "boot_of",
        "boots",
        "counts",
        "ends",
        "keys",
        "mark_ms",
        "seconds",
        "sketch_ends",
        "sketches",
    )

    def __init__(
        self,
        mark_ms: int,
        keys: list[str],
        ends: NDArray[np.int64],
        boots: list[str],
        boot_of: NDArray[np.int64],
        seconds: NDArray[np.int64],
        counts: NDArray[np.int64],
        sketches: bytes,
        sketch_ends: NDArray[np.int64],
    ) -> None:
        self.mark_ms = mark_ms
        self.keys = keys
        self.ends = ends
        self.boots = boots
        self.boot_of = boot_of
        self.seconds = seconds
        self.counts = counts
        self.sketches = sketches
        self.sketch_ends = sketch_ends
        self._lists: CellLists | None = None

    def wrong(self) -> str | None:
        """What makes these no columns, as the end of a sentence; compiled code takes only sound ones."""
        rows, ends, sketch_ends = len(self.seconds), self.ends, self.sketch_ends
        if len(self.boot_of) != rows or self.counts.shape != (rows, WIDTH):
            return "its columns are not of one length"
        if len(sketch_ends) != rows * PARTS or len(ends) != len(self.keys):
            return "its ends are not as many as what they end"
        for name, steps, last in (("rows", ends, rows), ("sketches", sketch_ends, len(self.sketches))):
            if int(steps[-1] if len(steps) else 0) != last or (
                len(steps) and (int(steps[0]) < 0 or bool((steps[1:] < steps[:-1]).any()))
            ):
                return f"the ends of its {name} do not rise to the last"
        if rows and not 0 <= int(self.boot_of.min()) <= int(self.boot_of.max()) < len(self.boots):
            return "it numbers a boot that it does not name"
        if rows and (int(self.counts.min()) < 0 or int(self.seconds.min()) < 0):
            return "it counts less than nothing"
        return None

    def lists(self) -> CellLists:
        """The columns as lists, made once."""
        if self._lists is None:
            self._lists = CellLists(
                self.ends.tolist(),
                self.boot_of.tolist(),
                self.seconds.tolist(),
                self.counts.tolist(),
                self.sketch_ends.tolist(),
            )
        return self._lists

    def rows_of(self, place: int) -> Iterator[tuple[str, int, list[int], list[bytes]]]:
        """Boot, second, counts and sketches of each row of the key at ``place``."""
        lists, sketches = self.lists(), self.sketches
        for row in range(lists.ends[place - 1] if place else 0, lists.ends[place]):
            at = row * PARTS
            begin = lists.sketch_ends[at - 1] if at else 0
            parts = [sketches[a:b] for a, b in pairwise((begin, *lists.sketch_ends[at : at + PARTS]))]
            yield self.boots[lists.boot_of[row]], lists.seconds[row], lists.counts[row], parts

    def size_bytes(self) -> int:
        """About how long it is on the wire."""
        return len(self.sketches) + _ROW_BYTES * len(self.seconds) + 20 * len(self.keys)

    def split(self, most_bytes: int) -> Iterator[CellColumns]:
        """The same in parts that are about as long as this on the wire, cut between keys."""
        if not self.keys:
            return
        sketch_end = np.concatenate([[0], self.sketch_ends[PARTS - 1 :: PARTS]])
        sizes = self.ends * _ROW_BYTES + sketch_end[self.ends]
        begin = 0
        while begin < len(self.keys):
            before = int(sizes[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(sizes, before + most_bytes, side="right")))
            yield self if (begin, end) == (0, len(self.keys)) else self.part(begin, end)
            begin = end

    def part(self, begin: int, end: int) -> CellColumns:
        """Those of the keys from ``begin`` to before ``end``, with only the boots that they have."""
        first = int(self.ends[begin - 1]) if begin else 0
        last = int(self.ends[end - 1])
        from_byte = int(self.sketch_ends[first * PARTS - 1]) if first else 0
        sketch_ends = self.sketch_ends[first * PARTS : last * PARTS]
        to_byte = int(sketch_ends[-1]) if len(sketch_ends) else from_byte
        boot_of = self.boot_of[first:last]
        is_named = np.zeros(len(self.boots), np.bool_)
        is_named[boot_of] = True
        return CellColumns(
            self.mark_ms,
            self.keys[begin:end],
            self.ends[begin:end] - first,
            [self.boots[number] for number in np.flatnonzero(is_named).tolist()],
            (np.cumsum(is_named) - 1)[boot_of],
            self.seconds[first:last],
            self.counts[first:last],
            self.sketches[from_byte:to_byte],
            sketch_ends - from_byte,
        )


def changes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places where a value is another than the one before it."""
    return np.flatnonzero(values[1:] != values[:-1]) + 1


def cells_together(parts: Iterable[tuple[CellColumns, int]]) -> dict[str, Slots]:
    """The cells of one key, boot by boot, summed over several columns and its place in each."""
    found: dict[str, dict[int, tuple[list[int], list[list[bytes]]]]] = {}
    for columns, place in parts:
        for boot, second, counts, sketches in columns.rows_of(place):
            slots = found.setdefault(boot, {})
            held = slots.get(second)
            if held is None:
                slots[second] = (counts, [sketches])
            else:
                slots[second] = ([a + b for a, b in zip(held[0], counts, strict=True)], held[1])
                held[1].append(sketches)
    return {
        boot: {
            second: _cell(counts, [b"".join(parts) for parts in zip(*sketches, strict=True)])
            for second, (counts, sketches) in slots.items()
        }
        for boot, slots in found.items()
    }


def _cell(counts: list[int], sketches: list[bytes]) -> Cell:
    values: list[Any] = [*counts, *sketches]
    return Cell(*values)


def join_cells(cells: dict[str, Slots], more: dict[str, Slots]) -> None:
    """Add cells, boot by boot, to those of a delta in place."""
    for boot, slots in more.items():
        held = cells.setdefault(boot, {})
        for second, cell in slots.items():
            there: Any = held.get(second)
            if there is None:
                held[second] = cell
            else:
                add_cell(there, cell)
