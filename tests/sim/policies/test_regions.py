"""Region policies on two regions with figures set by hand."""

from __future__ import annotations

from random import Random

import pytest

from sim.policies.regions import REGIONS
from tests.sim.policies.seen import Seen, request

BLOCKS = tuple(range(1, 20))


def two(waiting: list[float], running: list[float], far_ms: float = 80.0) -> Seen:
    """Instances 0 and 1 are near, 2 and 3 are far."""
    return Seen(waiting, running, regions=[[0, 1], [2, 3]], rtts_ms=(0.0, far_ms))


def chosen(name: str, seen: Seen, **knobs: float) -> int:
    """The region that a policy picks."""
    policy = REGIONS[name].factory(knobs)(0)
    answer = policy.choose_region(1_000.0, request(blocks=BLOCKS), seen.fleet, [0, 1], Random(1))
    assert isinstance(answer, int)
    return answer


@pytest.mark.parametrize("name", REGIONS)
def test_an_idle_near_region_is_taken_by_all(name: str) -> None:
    assert chosen(name, two([0, 0, 0, 0], [1, 1, 1, 1])) == 0


@pytest.mark.parametrize("name", [name for name in REGIONS if name not in ("nearest", "envoy_locality")])
def test_a_crowded_near_region_is_left_for_an_idle_far_one(name: str) -> None:
    seen = two([50, 50, 0, 0], [100, 100, 0, 0]).pending(90_000.0, 90_000.0, 0.0, 0.0)
    assert chosen(name, seen) == 1


@pytest.mark.parametrize("name", ["gorgo", "predicted", "skywalker"])
def test_a_prefix_far_away_is_worth_the_way(name: str) -> None:
    assert chosen(name, two([0] * 4, [1] * 4).cached(3, BLOCKS)) == 1


def test_health_moves_shares_in_waterfall_and_envoy() -> None:
    for name in ("waterfall", "envoy_locality"):
        policy = REGIONS[name].factory({})(0)
        rng = Random(3)
        whole = two([0] * 4, [0] * 4)
        assert policy.choose_region(1_000.0, request(), whole.fleet, [0, 1], rng) == 0
        half = Seen([0] * 4, [0] * 4, regions=[[0], [2, 3]], rtts_ms=(0.0, 80.0))
        picks = [policy.choose_region(1_000.0, request(), half.fleet, [0, 1], rng) for _ in range(400)]
        assert 0.6 < picks.count(0) / 400 < 0.8  # 70% of what half of the instances should get
