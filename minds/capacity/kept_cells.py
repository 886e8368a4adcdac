"""What keys keep for later of one source, summed for all of them at once before they merge it.

A key that is busy keeps a partial a flush. Merging each costs 7 us; together with those of all other keys,
in arrays, 0.5 us.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any, NamedTuple

import numba
import numpy as np

from minds.capacity.cell_columns import CellColumns, changes
from minds.windows import PARTS


class Together(NamedTuple):
    """Several columns of one source, in the order in which they came.

    ``before`` is the sum of all but the newest; ``places`` says where a key is in it, and ``times`` of how
    many of them it is the sum there.
    """

    newest: CellColumns
    before: CellColumns
    places: dict[str, int]
    times: Counter[str]


def together(kept: list[CellColumns]) -> Together:
    """Sum columns of one source, two at least."""
    earlier, newest = kept[:-1], kept[-1]
    before = summed(earlier)
    times = Counter(chain.from_iterable(columns.keys for columns in earlier))
    return Together(newest, before, {key: place for place, key in enumerate(before.keys)}, times)


def summed(columns: list[CellColumns]) -> CellColumns:
    """The sum of columns: each key, boot and second once."""
    keys: dict[str, int] = {}
    boots: dict[str, int] = {}
    key_of, boot_of = [], []
    for each in columns:
        numbers = np.array([keys.setdefault(key, len(keys)) for key in each.keys], np.int64)
        key_of.append(np.repeat(numbers, np.diff(each.ends, prepend=0)))
        names = np.array([boots.setdefault(boot, len(boots)) for boot in each.boots], np.int64)
        boot_of.append(names[each.boot_of])
    key, boot = np.concatenate(key_of), np.concatenate(boot_of)
    second = np.concatenate([each.seconds for each in columns])
    order = np.lexsort((second, boot, key))
    key, boot, second = key[order], boot[order], second[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (key[1:] != key[:-1]) | (boot[1:] != boot[:-1]) | (second[1:] != second[:-1])
    starts = np.flatnonzero(first)
    counts = np.add.reduceat(np.concatenate([each.counts for each in columns])[order], starts, axis=0)
    sketches, sketch_ends = _sketches(columns, order, starts)
    ends = np.append(changes(key[starts]), len(starts))
    return CellColumns(
        max(each.mark_ms for each in columns),
        list(keys),  # numbered as they came, so in the order of their numbers
        ends,
        list(boots),
        boot[starts],
        second[starts],
        counts,
        sketches,
        sketch_ends,
    )


def _sketches(columns: list[CellColumns], order: Any, starts: Any) -> tuple[bytes, Any]:
    data = np.frombuffer(b"".join(each.sketches for each in columns), np.uint8)
    at, begins, ends = 0, [], []
    for each in columns:
        begins.append(np.concatenate([[0], each.sketch_ends[:-1]]) + at)
        ends.append(each.sketch_ends + at)
        at += len(each.sketches)
    begin, end = (np.concatenate(part).reshape(-1, PARTS)[order] for part in (begins, ends))
    joined, sketch_ends = _join(data, begin, end, np.append(starts, len(order)))
    return joined.tobytes(), sketch_ends


@numba.njit(cache=True, nogil=True)
def _join(data: Any, begin: Any, end: Any, bounds: Any) -> Any:
    """Join the pieces of each sketch of the rows that become one."""
    rows = len(bounds) - 1
    joined, ends = np.empty(len(data), np.uint8), np.empty(rows * PARTS, np.int64)
    at = 0
    for row in range(rows):
        for part in range(PARTS):
            for piece in range(bounds[row], bounds[row + 1]):
                for place in range(begin[piece, part], end[piece, part]):
                    joined[at] = data[place]
                    at += 1
            ends[row * PARTS + part] = at
    return joined[:at], ends


def warm_up() -> None:
    """Compile, or load what was compiled before: seconds the first time."""
    none = np.zeros((0, PARTS), np.int64)
    _join(np.frombuffer(b"", np.uint8), none, none, np.zeros(1, np.int64))
