"""The sketch: its stated accuracy, against exact percentiles and the ddsketch package; merging is exact."""

from __future__ import annotations

import json
import math
import random

import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st

from minds.sketch import RELATIVE_ACCURACY, SMALLEST_MS, insert, merge_into, percentiles, quantiles

SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
SLACK = 1e-9
durations = st.lists(st.floats(min_value=0.01, max_value=6e8), min_size=1, max_size=200)


def sketch_of(values: list[float]) -> dict[int, int]:
    sketch: dict[int, int] = {}
    for value in values:
        insert(sketch, value)
    return sketch


@given(durations)
def test_each_quantile_is_within_the_accuracy_of_the_exact_one(values: list[float]) -> None:
    found = quantiles(sketch_of(values), SHARES)
    assert found is not None
    ordered = sorted(values)
    for share, value in zip(SHARES, found, strict=True):
        exact = ordered[math.floor(share * (len(values) - 1))]
        assert abs(value - exact) <= (RELATIVE_ACCURACY + SLACK) * exact


@pytest.mark.parametrize("shape", ["lognormal", "uniform", "two humps"])
def test_it_agrees_with_the_ddsketch_package(shape: str) -> None:
    rng = random.Random(7)
    draw = {
        "lognormal": lambda: rng.lognormvariate(5.0, 1.2),
        "uniform": lambda: rng.uniform(1.0, 2000.0),
        "two humps": lambda: rng.gauss(50.0, 5.0) if rng.random() < 0.9 else rng.gauss(9000.0, 500.0),
    }[shape]
    values = [max(0.01, draw()) for _ in range(5_000)]
    theirs = DDSketch(RELATIVE_ACCURACY)
    for value in values:
        theirs.add(value)
    found = quantiles(sketch_of(values), SHARES)
    assert found is not None
    for share, value in zip(SHARES, found, strict=True):
        reference = theirs.get_quantile_value(share)
        assert value == pytest.approx(reference, rel=2.1 * RELATIVE_ACCURACY)


@given(durations, durations)
def test_merging_is_adding(left: list[float], right: list[float]) -> None:
    merged = sketch_of(left)
    merge_into(merged, sketch_of(right))
    assert merged == sketch_of(left + right)


def test_nothing_measured_is_unknown_and_zero_is_not() -> None:
    assert percentiles({}) is None
    found = percentiles(sketch_of([0.0]))
    assert found is not None
    assert found.p50 == pytest.approx(SMALLEST_MS, rel=0.02)


def test_a_sketch_is_json() -> None:
    sketch = sketch_of([1.0, 10.0, 10.0])
    assert {int(k): v for k, v in json.loads(json.dumps(sketch)).items()} == sketch
