"""The merge rule is exact under crashes, re-cuts, zombies and redelivery; each simpler rule is not."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from minds.merge import Merged, Partial, apply_rollup

_spec = importlib.util.spec_from_file_location("merge_model", Path(__file__).with_name("merge_model.py"))
assert _spec is not None and _spec.loader is not None
model = importlib.util.module_from_spec(_spec)
sys.modules["merge_model"] = model
_spec.loader.exec_module(model)

SCHEDULES = 6_000


def test_every_schedule_gives_the_reference_fold() -> None:
    wrong = [seed for seed in range(SCHEDULES) if not model.is_exact(seed, model.exact)]
    assert wrong == []


def test_the_schedules_hold_what_they_are_for() -> None:
    zombies = recuts = 0
    for seed in range(200):
        schedule = model.Model(seed)
        schedule.run()
        generations = [generation for generation, *_ in schedule.rollups]
        zombies += generations != sorted(generations)
        cuts = {(base, upto) for _, base, upto, _ in schedule.rollups}
        recuts += any(a[0] == b[0] and a != b for a in cuts for b in cuts)
    assert zombies > 20
    assert recuts > 20


@pytest.mark.parametrize(
    "left_out",
    [{"generations": False}, {"replace": False}, {"close": False}, {"skip": False}],
    ids=["no generation check", "overlaps are added", "replaced without closing", "no applied offset"],
)
def test_each_simpler_rule_has_a_counterexample(left_out: dict[str, bool]) -> None:
    rule = model.simpler(**left_out)
    assert any(not model.is_exact(seed, rule) for seed in range(SCHEDULES))


def test_the_simpler_rule_with_nothing_left_out_is_the_rule() -> None:
    assert all(model.is_exact(seed, model.simpler()) for seed in range(500))


def test_committing_after_the_next_interval_began_has_a_counterexample() -> None:
    assert any(not model.is_exact(seed, model.exact, late_commit=True) for seed in range(SCHEDULES))


def test_sources_are_kept_apart_and_one_rollup_may_hold_several() -> None:
    state: Merged[Counter[str], Counter[str]] = Merged(closed=Counter())
    both = [
        Partial("a:0", 1, 0, 5, Counter(x=1)),
        Partial("b:0", 9, 0, 5, Counter(y=2)),
    ]
    assert apply_rollup(state, 3, both, model.add)
    assert not apply_rollup(state, 3, both, model.add)
    assert apply_rollup(state, 4, [Partial("a:0", 1, 5, 7, Counter(x=10))], model.add)
    assert state.closed == Counter(x=1)
    assert {source: held.delta for source, held in state.open.items()} == {
        "a:0": Counter(x=10),
        "b:0": Counter(y=2),
    }
