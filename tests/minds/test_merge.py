"""The merge rule is exact under crashes, re-cuts, zombies and redelivery; each simpler rule is not.

The model is a simulated log with combiners that crash, stall and rise again, and a stage two that is fed
twice. It knows nothing of Kafka: one source partition of numbered events, each with a key; a log of rollups;
a committed offset that only the newest generation may move. A seeded schedule drives it; at the end all that
was written is applied and compared with the plain fold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from minds.merge import Merged, Open, Partial, apply_rollup

Bag = Counter[int]
State = Merged[Bag, Bag]
Apply = Callable[[State, int, list[Partial[Bag]]], bool]


def add(total: Bag, delta: Bag) -> None:
    total.update(delta)


def exact(state: State, offset: int, partials: list[Partial[Bag]]) -> bool:
    """The rule of minds.merge."""
    return apply_rollup(state, offset, partials, add)


def simpler(
    *, generations: bool = True, replace: bool = True, close: bool = True, skip: bool = True
) -> Apply:
    """The rule with one of its parts left out."""

    def apply(state: State, offset: int, partials: list[Partial[Bag]]) -> bool:
        if skip and offset <= state.applied:
            return False
        for partial in partials:
            held = state.open.get(partial.source)
            if held is not None:
                if generations and partial.generation < held.generation:
                    continue
                if close and (partial.base >= held.upto or not replace):
                    add(state.closed, held.delta)
            state.open[partial.source] = Open(
                partial.generation, partial.base, partial.upto, Counter(partial.delta)
            )
        state.applied = offset
        return True

    return apply


@dataclass
class Combiner:
    generation: int
    base: int
    at: int
    held: dict[str, Bag] = field(default_factory=dict)
    written: bool = False
    owed: list[int] = field(default_factory=list)
    """Written intervals' ends that are not committed yet (only where commits come late)."""


class Model:
    """One schedule. ``late_commit`` lets a combiner start the next interval before it commits the last."""

    def __init__(self, seed: int, *, late_commit: bool = False) -> None:
        self.random = random.Random(seed)
        self.late_commit = late_commit
        keys = self.random.randint(1, 4)
        self.events = [f"k{self.random.randrange(keys)}" for _ in range(self.random.randint(5, 40))]
        self.committed = 0
        self.generation = 0
        self.rollups: list[tuple[int, int, int, dict[str, Bag]]] = []
        self.zombies: list[Combiner] = []
        self.active = self._take_over()

    def _take_over(self) -> Combiner:
        self.generation += 1
        return Combiner(self.generation, self.committed, self.committed)

    def _read(self, combiner: Combiner) -> None:
        for _ in range(self.random.randint(1, 6)):
            if combiner.at < len(self.events):
                combiner.held.setdefault(self.events[combiner.at], Counter())[combiner.at] += 1
                combiner.at += 1

    def _write(self, combiner: Combiner) -> None:
        if combiner.at > combiner.base:
            bags = {key: Counter(bag) for key, bag in combiner.held.items()}
            self.rollups.append((combiner.generation, combiner.base, combiner.at, bags))
            combiner.written = True

    def _commit(self, combiner: Combiner) -> None:
        """The group fences all but its newest member."""
        if combiner.generation == self.generation:
            self.committed = combiner.at
            combiner.base, combiner.held, combiner.written = combiner.at, {}, False

    def _step_active(self) -> None:
        active = self.active
        if self.late_commit:
            if active.at > active.base and self.random.random() < 0.5:
                self._write(active)
                active.owed.append(active.at)
                active.base, active.held = active.at, {}
            elif active.owed and self.random.random() < 0.3:
                self.committed = active.owed.pop()
                active.owed.clear()
            else:
                self._read(active)
        elif active.written:
            self._commit(active)
        elif active.at > active.base and self.random.random() < 0.4:
            self._write(active)
        else:
            self._read(active)

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.12:  # a crash, or a stall that the group takes for one
            if self.random.random() < 0.6:
                self.zombies.append(self.active)
            self.active = self._take_over()
        elif roll < 0.3 and self.zombies:
            zombie = self.random.choice(self.zombies)
            if zombie.written and self.random.random() < 0.5:
                self._commit(zombie)  # is refused: it learns that it is one
                self.zombies.remove(zombie)
            elif self.random.random() < 0.5:
                self._read(zombie) if not zombie.written else self._write(zombie)
            else:
                self._write(zombie)
        else:
            self._step_active()

    def run(self) -> None:
        for _ in range(self.random.randint(5, 60)):
            self.step()
        while self.active.at < len(self.events):
            self._read(self.active)
        if self.active.at > self.active.base:
            self._write(self.active)
        for zombie in self.zombies:
            if self.random.random() < 0.7:
                self._write(zombie)

    def combined(self, apply: Apply, *, twice: bool = True) -> dict[str, Bag]:
        """Feed the rollups to stage two, which now and then goes back and is fed some again."""
        states: dict[str, State] = {}
        at = 0
        while at < len(self.rollups):
            generation, base, upto, bags = self.rollups[at]
            for key, bag in bags.items():
                state = states.setdefault(key, Merged(closed=Counter()))
                apply(state, at, [Partial("t:0", generation, base, upto, bag)])
            at += 1
            if twice and self.random.random() < 0.15:
                at = max(0, at - self.random.randint(1, 4))
        found = {}
        for key, state in states.items():
            total = Counter(state.closed)
            for held in state.open.values():
                total.update(held.delta)
            found[key] = total
        return found

    def reference(self) -> dict[str, Bag]:
        found: dict[str, Bag] = {}
        for offset, key in enumerate(self.events):
            found.setdefault(key, Counter())[offset] += 1
        return found


def is_exact(seed: int, apply: Apply, *, late_commit: bool = False) -> bool:
    """Whether one schedule ends in the reference fold."""
    model: Any = Model(seed, late_commit=late_commit)
    model.run()
    return bool(model.combined(apply) == model.reference())


SCHEDULES = 6_000


def test_every_schedule_gives_the_reference_fold() -> None:
    wrong = [seed for seed in range(SCHEDULES) if not is_exact(seed, exact)]
    assert wrong == []


def test_the_schedules_hold_what_they_are_for() -> None:
    zombies = recuts = 0
    for seed in range(200):
        schedule = Model(seed)
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
    rule = simpler(**left_out)
    assert any(not is_exact(seed, rule) for seed in range(SCHEDULES))


def test_the_simpler_rule_with_nothing_left_out_is_the_rule() -> None:
    assert all(is_exact(seed, simpler()) for seed in range(500))


def test_committing_after_the_next_interval_began_has_a_counterexample() -> None:
    assert any(not is_exact(seed, exact, late_commit=True) for seed in range(SCHEDULES))


def test_sources_are_kept_apart_and_one_rollup_may_hold_several() -> None:
    state: Merged[Counter[str], Counter[str]] = Merged(closed=Counter())
    both = [
        Partial("a:0", 1, 0, 5, Counter(x=1)),
        Partial("b:0", 9, 0, 5, Counter(y=2)),
    ]
    assert apply_rollup(state, 3, both, add)
    assert not apply_rollup(state, 3, both, add)
    assert apply_rollup(state, 4, [Partial("a:0", 1, 5, 7, Counter(x=10))], add)
    assert state.closed == Counter(x=1)
    assert {source: held.delta for source, held in state.open.items()} == {
        "a:0": Counter(x=10),
        "b:0": Counter(y=2),
    }
