"""A mergeable quantile sketch: a count a logarithmic bin, 1% relative accuracy.

The scheme of DDSketch (Masson, Rim, Lee, VLDB 2019) in its plain form: bin ``i`` holds the values in
``(gamma**(i-1), gamma**i]`` with ``gamma = (1 + a) / (1 - a)``, and reads as ``2 * gamma**i / (gamma + 1)``,
which is within the relative accuracy ``a`` of each of them. Bins are a sparse ``{index: count}``, so that a
sketch is JSON, adding is exact, and the order of merges never matters. Durations are bounded (a week), hence
so is the number of bins (about 1400).
"""

from __future__ import annotations

import math

from schemas.readings import Percentiles

RELATIVE_ACCURACY = 0.01
SMALLEST_MS = 1e-3
"""A microsecond: anything shorter counts as that."""

_GAMMA = (1.0 + RELATIVE_ACCURACY) / (1.0 - RELATIVE_ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)

Sketch = dict[int, int]
"""Bin index to count."""


def insert(sketch: Sketch, value_ms: float) -> None:
    """Count one value in milliseconds; it must be finite and not negative (the schemas refuse others)."""
    index = math.ceil(math.log(max(value_ms, SMALLEST_MS)) / _LOG_GAMMA)
    sketch[index] = sketch.get(index, 0) + 1


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
