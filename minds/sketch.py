"""A mergeable quantile sketch: a count a logarithmic bin, 2% relative accuracy.

The scheme of DDSketch (Masson, Rim, Lee, VLDB 2019) in its plain form: bin ``i`` holds the values in
``(gamma**(i-1), gamma**i]`` with ``gamma = (1 + a) / (1 - a)``, and reads as ``2 * gamma**i / (gamma + 1)``,
which is within the relative accuracy ``a`` of each of them. Adding is exact, and the order of merges never
matters. Durations are bounded (a week), hence so is the number of bins (about 700).

A sketch is bytes: pairs of little-endian 16 bit numbers, a bin and a count, in any order, a bin as often as
it likes. So merging is joining, at 60 ns instead of microseconds; a sketch that has grown long is put in
order (``compacted``). As base64 it is JSON; it takes a fifth of the memory of a dict.

2% because of what a row costs: with 100 outcomes a second of lognormal latencies the bins of an instance's
windows are half as many as at 1%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from schemas.readings import Percentiles

RELATIVE_ACCURACY = 0.02
SMALLEST_MS = 1e-3
"""A microsecond: anything shorter counts as that."""
COMPACT_BYTES = 1_024
"""A sketch that has grown beyond this is put in order: 256 pairs, where 60 to 100 bins are usual."""

_GAMMA = (1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
PER_LOG = 1.0 / _LOG_GAMMA
"""Bins to a factor of e."""
LONGEST_MS = 1e12
LOWEST_BIN = math.ceil(math.log(SMALLEST_MS) * PER_LOG)
BINS = math.ceil(math.log(LONGEST_MS) * PER_LOG) - LOWEST_BIN + 1
"""How many bins there are: more than any duration that the schemas allow needs."""
FULL = 65_535
"""The most that one pair counts."""
_PAIR_BYTES = 4
_WRONG_BIN = "A sketch counts in bins that there are not."

SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
"""Of the published percentiles."""

Sketch = bytes
EMPTY: Sketch = b""


def bin_of(value_ms: float) -> int:
    """The bin of a value in milliseconds; it must be finite and not negative (the schemas refuse others)."""
    return math.ceil(math.log(min(max(value_ms, SMALLEST_MS), LONGEST_MS)) * PER_LOG)


def sketch_of_values(values_ms: list[float]) -> Sketch:
    """The sketch of these values."""
    return b"".join([_pair(bin_of(value), 1) for value in values_ms])


def sketch_of_bins(counts: dict[int, int]) -> Sketch:
    """The sketch that has counted so much in these bins."""
    return b"".join([_pairs(place, count) for place, count in counts.items()])


def merged(sketch: Sketch, other: Sketch) -> Sketch:
    """Both together."""
    both = sketch + other
    return both if len(both) <= COMPACT_BYTES else compacted(both)


def compacted(sketch: Sketch) -> Sketch:
    """The same sketch in its one ordered form: each bin once (more often only beyond 65,535)."""
    if len(sketch) <= _PAIR_BYTES:
        return sketch
    is_sound, pairs = _ordered(np.frombuffer(sketch, "<i2"))
    if not is_sound:
        raise ValueError(_WRONG_BIN)
    return bytes(pairs.tobytes())


def total(sketch: Sketch) -> int:
    """How many values were counted."""
    return int(np.frombuffer(sketch, "<u2")[1::2].sum(dtype=np.int64))


def quantiles(sketch: Sketch, shares: tuple[float, ...]) -> list[float] | None:
    """The values in milliseconds at these shares (0 to 1), or None where nothing was counted.

    As the ddsketch package ranks them: the value at rank ``share * (count - 1)``, counted from 0.
    """
    places = _places([sketch], np.array(shares))[0]
    return None if places[0] < 0 else [_value(place) for place in places]


def _places(sketches: Sequence[Sketch], shares: NDArray[np.float64]) -> list[list[int]]:
    """The bins at these shares, which rise, of each sketch, counted from the lowest; -1 where it is empty."""
    ends = np.cumsum(np.fromiter(map(len, sketches), np.int64, len(sketches))) // _PAIR_BYTES
    found = _ranked(np.frombuffer(b"".join(sketches), "<i2"), ends, shares)
    if len(found) < len(sketches):
        raise ValueError(_WRONG_BIN)
    places: list[list[int]] = found.tolist()
    return places


def _value(place: int) -> float:
    """What stands for the values of a bin, counted from the lowest, in milliseconds."""
    return float(2.0 * _GAMMA ** (place + LOWEST_BIN) / (_GAMMA + 1.0))


@numba.njit(cache=True, nogil=True)
def _ranked(pairs: Any, ends: Any, shares: Any) -> Any:
    """A row of bins a sketch; none at all where a bin is none of ours."""
    found = np.full((len(ends), len(shares)), -1, np.int64)
    counts = np.zeros(BINS, np.int64)
    begin = 0
    for sketch in range(len(ends)):
        total, lowest, highest = np.int64(0), np.int64(BINS), np.int64(0)
        for at in range(2 * begin, 2 * ends[sketch], 2):
            place = np.int64(pairs[at]) - LOWEST_BIN
            if not 0 <= place < BINS:
                return np.empty((0, len(shares)), np.int64)
            count = np.int64(pairs[at + 1]) & FULL
            counts[place] += count
            total += count
            if place < lowest:
                lowest = place
            if place > highest:
                highest = place
        begin = ends[sketch]
        if total:
            reached, grown = np.int64(lowest), np.int64(counts[lowest])
            for number in range(len(shares)):
                rank = shares[number] * (total - 1)
                while grown <= rank and reached < BINS - 1:
                    reached += 1
                    grown += counts[reached]
                found[sketch, number] = reached
        counts[lowest : highest + 1] = 0
    return found


@numba.njit(cache=True, nogil=True)
def _ordered(pairs: Any) -> Any:
    """Whether all bins are ours, and the same pairs with each bin once, in order (more often only beyond what
    a pair counts)."""
    counts = np.zeros(BINS, np.int64)
    for at in range(0, len(pairs) - 1, 2):
        place = np.int64(pairs[at]) - LOWEST_BIN
        if not 0 <= place < BINS:
            return False, np.empty((0, 2), np.int16)
        counts[place] += np.int64(pairs[at + 1]) & FULL
    size = np.int64(0)
    for each in range(BINS):
        size += (counts[each] + FULL - 1) // FULL
    found = np.empty((size, 2), np.int16)
    row = 0
    for each in range(BINS):
        while counts[each] > 0:
            found[row, 0] = each + LOWEST_BIN
            found[row, 1] = np.int16(min(counts[each], FULL))
            counts[each] -= FULL
            row += 1
    return True, found


def warm_up() -> None:
    """Compile, or load what was compiled before: seconds the first time."""
    published_all([_pair(0, 1)])
    compacted(_pair(0, 1) * 2)


def percentiles(sketch: Sketch) -> Percentiles | None:
    """The published percentiles of a window, or None where nothing was measured."""
    found = published(sketch)
    return None if found is None else Percentiles(**found)


def published(sketch: Sketch) -> dict[str, float] | None:
    """The same by name. Four digits, of what is known to 2%: rows are shorter for it."""
    return published_all([sketch])[0]


def published_all(sketches: Sequence[Sketch]) -> list[dict[str, float] | None]:
    """The same of many."""
    if not any(sketches):
        return [None] * len(sketches)  # most instances of a large fleet have had no outcomes lately
    return [
        None if places[0] < 0 else dict(zip(SHARES, map(_rounded, places), strict=True))
        for places in _places(sketches, _SHARES)
    ]


_SHARES = np.array(list(SHARES.values()))


@cache
def _rounded(place: int) -> float:
    return float(f"{_value(place):.4g}")


def _pair(place: int, count: int) -> bytes:
    return place.to_bytes(2, "little", signed=True) + count.to_bytes(2, "little")


def _pairs(place: int, count: int) -> bytes:
    """One pair, and more where the count is larger than one may say."""
    full, rest = divmod(count, FULL)
    return _pair(place, FULL) * full + (_pair(place, rest) if rest else b"")
