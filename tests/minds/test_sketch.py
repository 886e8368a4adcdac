"""The sketch: its stated accuracy, against exact percentiles and the ddsketch package; merging is exact."""

from __future__ import annotations

import base64
import math
import random

import msgspec
import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st

from minds.sketch import (
    COMPACT_BYTES,
    EMPTY,
    RELATIVE_ACCURACY,
    SMALLEST_MS,
    Sketch,
    bin_of,
    compacted,
    merged,
    percentiles,
    published_all,
    quantiles,
    sketch_of_bins,
    total,
    warm_up,
)
from minds.sketch import sketch_of_values as sketch_of

SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
SLACK = 1e-9


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Once for all, or the first examples take seconds."""
    warm_up()


durations = st.lists(st.floats(min_value=0.01, max_value=6e8), min_size=1, max_size=200)


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
    both = merged(sketch_of(left), sketch_of(right))
    assert compacted(both) == compacted(sketch_of(right + left))
    assert total(both) == len(left) + len(right)


@given(st.lists(durations, max_size=20), st.randoms(use_true_random=False))
def test_neither_order_nor_when_it_is_put_in_order_matters(
    parts: list[list[float]], rng: random.Random
) -> None:
    sketches = [sketch_of(part) for part in parts]
    straight = EMPTY
    for sketch in sketches:
        straight = merged(straight, sketch)
    rng.shuffle(sketches)
    other = EMPTY
    for sketch in sketches:
        other = merged(other, sketch)
        if rng.random() < 0.5:
            other = compacted(other)
    assert compacted(other) == compacted(straight)
    assert quantiles(other, SHARES) == quantiles(straight, SHARES)


def test_a_sketch_stays_short_however_much_it_counts() -> None:
    rng = random.Random(5)
    sketch: Sketch = EMPTY
    for _ in range(2_000):
        sketch = merged(sketch, sketch_of([rng.lognormvariate(5.0, 0.5) for _ in range(10)]))
        assert len(sketch) <= COMPACT_BYTES
    assert total(sketch) == 20_000
    assert len(compacted(sketch)) < COMPACT_BYTES / 2


def test_a_bin_counts_beyond_what_one_pair_may_say() -> None:
    sketch = sketch_of_bins({bin_of(100.0): 200_000, bin_of(5.0): 1})
    assert total(sketch) == total(compacted(sketch)) == 200_001
    assert compacted(merged(sketch, sketch)) == compacted(
        sketch_of_bins({bin_of(100.0): 400_000, bin_of(5.0): 2})
    )
    assert quantiles(sketch, (0.0, 0.5)) == pytest.approx([5.0, 100.0], rel=RELATIVE_ACCURACY)


def test_nothing_measured_is_unknown_and_zero_is_not() -> None:
    assert percentiles(EMPTY) is None
    found = percentiles(sketch_of([0.0]))
    assert found is not None
    assert found.p50 == pytest.approx(SMALLEST_MS, rel=0.02)


def test_a_sketch_is_json_as_base64() -> None:
    sketch = sketch_of([1.0, 10.0, 10.0])
    text = msgspec.json.encode(sketch)
    assert text.strip(b'"') == base64.b64encode(sketch)
    assert msgspec.json.decode(text, type=bytes) == sketch


def test_many_are_read_together_as_one_by_one() -> None:
    rng = random.Random(1)
    sketches = [sketch_of([rng.lognormvariate(4, 1) for _ in range(size)]) for size in (0, 1, 3, 0, 500)]
    assert published_all(sketches) == [published_all([each])[0] for each in sketches]
    assert [each is None for each in published_all(sketches)] == [True, False, False, True, False]
    assert published_all([]) == []
