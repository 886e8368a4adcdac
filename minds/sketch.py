"""A mergeable quantile sketch: a count a logarithmic bin, 2% relative accuracy.

The scheme of DDSketch (Masson, Rim, Lee, VLDB 2019) in its plain form: bin ``i`` holds the values in
``(gamma**(i-1), gamma**i]`` with ``gamma = (1 + a) / (1 - a)``, and reads as ``2 * gamma**i / (gamma + 1)``,
which is within the relative accuracy ``a`` of each of them. Bins are a sparse ``{index: count}``, so that a
sketch is JSON, adding is exact, and the order of merges never matters. Durations are bounded (a week), hence
so is the number of bins (about 700).

2% because of what a row costs: with 100 outcomes a second of lognormal latencies, an instance's state takes
11.1 kB and its windows are read in 121 us; at 1% it is 24.8 kB and 207 us.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import repeat
from operator import mul

from schemas.readings import Percentiles

RELATIVE_ACCURACY = 0.02
COUNTER_PAYS_FROM = 20
SMALLEST_MS = 1e-3
"""A microsecond: anything shorter counts as that."""

_GAMMA = (1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
_PER_LOG = 1.0 / _LOG_GAMMA

Sketch = dict[int, int]
"""Bin index to count."""


def insert(sketch: Sketch, value_ms: float) -> None:
    """Count one value in milliseconds; it must be finite and not negative (the schemas refuse others)."""
    index = math.ceil(math.log(max(value_ms, SMALLEST_MS)) * _PER_LOG)
    sketch[index] = sketch.get(index, 0) + 1


def sketch_of_values(values_ms: list[float]) -> Sketch:
    """The sketch of many values, as ``insert`` of each would make it, at a quarter of the cost."""
    if not values_ms:
        return {}
    values: Iterable[float] = values_ms
    if min(values_ms) < SMALLEST_MS:
        values = [max(value, SMALLEST_MS) for value in values_ms]
    bins = map(math.ceil, map(mul, map(math.log, values), repeat(_PER_LOG)))
    if len(values_ms) > COUNTER_PAYS_FROM:
        return dict(Counter(bins))
    sketch: Sketch = {}
    for index in bins:
        sketch[index] = sketch.get(index, 0) + 1
    return sketch


def merge_into(sketch: Sketch, other: Sketch) -> None:
    """Add the counts of ``other``."""
    for index, count in other.items():
        sketch[index] = sketch.get(index, 0) + count


def quantiles(sketch: Sketch, shares: tuple[float, ...]) -> list[float] | None:
    """The values in milliseconds at these shares (0 to 1), or None where nothing was counted.

    As the ddsketch package ranks them: the value at rank ``share * (count - 1)``, counted from 0.
    """
    total = sum(sketch.values())
    if total == 0:
        return None
    wanted = sorted((share * (total - 1), place) for place, share in enumerate(shares))
    found = [0.0] * len(shares)
    seen, at = 0, 0
    for index in sorted(sketch):
        seen += sketch[index]
        while at < len(wanted) and wanted[at][0] < seen:
            found[wanted[at][1]] = 2.0 * _GAMMA**index / (_GAMMA + 1.0)
            at += 1
    return found


def percentiles(sketch: Sketch) -> Percentiles | None:
    """The published percentiles of a window, or None where nothing was measured."""
    found = quantiles(sketch, (0.50, 0.90, 0.95, 0.99))
    if found is None:
        return None
    p50, p90, p95, p99 = found
    return Percentiles(p50=p50, p90=p90, p95=p95, p99=p99)
