"""From an engine's latency histograms to mergeable sketches.

Engines tell totals since their boot with bounds of their own (schemas.telemetry.LatencyTotals). What two of
them differ in is what happened in between; as a sketch it merges with those of other engines whatever their
bounds. A count is put at the geometric middle of its bucket, so a quantile is off by at most the square root
of the ratio of the bucket's bounds, on top of the sketch's own 2%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from minds.sketch import Sketch, bin_of, compacted, sketch_of_bins


class Totals(Protocol):
    """What is needed of a schemas.telemetry.LatencyTotals, or of its struct."""

    @property
    def bounds_ms(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[int]: ...


def sketch_of(totals: Totals) -> Sketch:
    """The sketch of all that was counted since the boot."""
    return _sketch(totals.bounds_ms, totals.counts)


def sketch_between(before: Totals, after: Totals) -> Sketch | None:
    """The sketch of what was counted between two totals of one boot, in this order.

    None where that can't be told: other bounds, or a count that fell (the engine's counters were reset).
    """
    if list(before.bounds_ms) != list(after.bounds_ms) or len(before.counts) != len(after.counts):
        return None
    grown = [later - earlier for earlier, later in zip(before.counts, after.counts, strict=True)]
    return None if min(grown, default=0) < 0 else _sketch(after.bounds_ms, grown)


def _sketch(bounds_ms: Sequence[float], counts: Sequence[int]) -> Sketch:
    bins: dict[int, int] = {}
    for place, count in enumerate(counts):
        if count > 0:
            index = bin_of(_middle_ms(bounds_ms, place))
            bins[index] = bins.get(index, 0) + count
    return compacted(sketch_of_bins(bins))


def _middle_ms(bounds_ms: Sequence[float], place: int) -> float:
    """The middle of a bucket. The first reaches down to 0 and is halved; the last has no upper bound, so it
    counts as its lower one: what lies there is only known to be longer."""
    if not bounds_ms:
        return 0.0
    if place == 0:
        return bounds_ms[0] / 2.0
    if place >= len(bounds_ms):
        return bounds_ms[-1]
    return math.sqrt(max(bounds_ms[place - 1], 1e-3) * bounds_ms[place])
