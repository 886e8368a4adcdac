"""Intervals are as many as they should be, whatever an answer takes; a delay is not made up for."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from streams.combiner import Pace

FLUSH_S = 0.06


def run(
    pace: Pace, seconds: float, takes_s: list[float], rng: random.Random, start_s: float = 100.0
) -> list[float]:
    """When intervals ended, where the broker answers after its wait and what the way takes."""
    now_s, ends = start_s, []
    wait_ms = pace.wait_ms(now_s)
    while now_s < start_s + seconds:
        now_s += wait_ms / 1000 + rng.choice(takes_s)
        if pace.is_over(now_s):
            ends.append(now_s)
        wait_ms = pace.wait_ms(now_s)
    return ends


@pytest.mark.parametrize("takes_s", [[0.0], [0.004], [0.001, 0.009], [0.02], [0.0, 0.0, 0.0, 0.025]])
def test_an_interval_a_flush_whatever_the_way_takes(takes_s: list[float]) -> None:
    ends = run(Pace(FLUSH_S), 60.0, takes_s, random.Random(1))
    settled = [end for end in ends if end > 110.0]
    assert len(settled) == pytest.approx(50.0 / FLUSH_S, rel=0.02)
    gaps = [later - earlier for earlier, later in pairwise(settled)]
    assert max(gaps) < 2 * FLUSH_S


def test_after_a_delay_the_grid_starts_anew() -> None:
    pace = Pace(FLUSH_S)
    assert pace.is_over(100.0)
    assert not pace.is_over(100.005)
    assert pace.is_over(100.0 + FLUSH_S)
    late_s = 105.0
    assert pace.is_over(late_s)
    assert not pace.is_over(late_s + 0.005)
    assert pace.is_over(late_s + FLUSH_S / 2)


def test_an_idle_broker_is_not_asked_again_and_again() -> None:
    pace = Pace(FLUSH_S)
    pace.is_over(100.0)
    for at_s in (100.0, 100.05, 100.2):
        assert pace.wait_ms(at_s) >= 1000 * FLUSH_S / 4
    assert Pace(0.001).wait_ms(5.0) == 1
