"""Sketches of histograms: as near as the buckets allow, mergeable across bounds, never of a reset."""

from __future__ import annotations

import bisect
import math

from hypothesis import given
from hypothesis import strategies as st

from minds.histograms import sketch_between, sketch_of
from minds.sketch import EMPTY, compacted, merged, quantiles
from schemas.telemetry import LatencyTotals

BOUNDS = [10.0, 20.0, 50.0, 100.0, 1000.0]
values = st.lists(st.floats(10.001, 999.0), min_size=1, max_size=60)


def _totals(measured: list[float], bounds: list[float] = BOUNDS) -> LatencyTotals:
    counts = [0] * (len(bounds) + 1)
    for value in measured:
        counts[bisect.bisect_left(bounds, value)] += 1
    return LatencyTotals(name="ttft", bounds_ms=bounds, counts=counts, sum_ms=math.fsum(measured))


@given(values)
def test_each_quantile_is_within_its_bucket(measured: list[float]) -> None:
    found = quantiles(sketch_of(_totals(measured)), (0.0, 0.5, 1.0))
    assert found is not None
    ranked = sorted(measured)
    for share, value in zip((0.0, 0.5, 1.0), found, strict=True):
        true = ranked[math.floor(share * (len(ranked) - 1))]
        place = bisect.bisect_left(BOUNDS, true)
        assert BOUNDS[place - 1] * 0.98 <= value <= BOUNDS[place] * 1.02


@given(values, values)
def test_what_came_between_is_the_difference_and_merges_to_the_whole(
    before: list[float], since: list[float]
) -> None:
    sketch = sketch_between(_totals(before), _totals(before + since))
    assert sketch == sketch_of(_totals(since))
    assert sketch is not None
    assert compacted(merged(sketch, sketch_of(_totals(before)))) == sketch_of(_totals(before + since))


def test_a_reset_and_other_bounds_tell_nothing_of_what_came_between() -> None:
    assert sketch_between(_totals([15.0, 15.0]), _totals([15.0])) is None
    assert sketch_between(_totals([15.0]), _totals([15.0], [10.0, 30.0])) is None
    assert sketch_between(_totals([15.0]), _totals([15.0])) == EMPTY


def test_the_open_ends() -> None:
    assert quantiles(sketch_of(_totals([3.0])), (0.5,)) is not None
    (low,) = quantiles(sketch_of(_totals([3.0])), (0.5,)) or [0.0]
    assert 4.9 <= low <= 5.1, "the first bucket reaches down to 0"
    (high,) = quantiles(sketch_of(_totals([9e6])), (0.5,)) or [0.0]
    assert 990.0 <= high <= 1010.0, "beyond the last bound it is only known to be longer"
    assert sketch_of(_totals([], [])) == EMPTY
    assert sketch_of(_totals([4.0], [])) != EMPTY
