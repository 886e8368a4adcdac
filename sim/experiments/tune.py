"""Tuning: the same seeded random search, with the same number of trials, for every arm.

Every arm starts from its own defaults (the published figures) and draws the other trials from its knobs'
ranges. All trials are screened on two cells (the loads nearest to the middle and to the top, one seed), with
seeds that the real runs don't use; the better half of them is then run on a second seed, and the best mean
over all four cells wins. An arm without knobs has one trial: there is nothing to tune.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import isfinite
from multiprocessing import get_context
from random import Random

from sim.experiments.cell import arm_with, run_cell
from sim.experiments.files_io import KINDS
from sim.experiments.spec import Arm, Experiment, Load
from sim.experiments.workload import Places

HIGHER_IS_BETTER = ("good", "hit", "output")
UNTUNED = frozenset({"routers", "rate_error", "stale_ms"})
"""Knobs that are conditions, not choices."""
WORST = 1e12


@dataclass(frozen=True, slots=True)
class Trial:
    """Knobs by ``kind.name``, and the mean score (less is better)."""

    knobs: dict[str, float]
    score: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """An arm's best trial, and all of them."""

    arm: str
    best: Trial
    trials: list[Trial]


def tune_all(
    experiment: Experiment,
    places: Places,
    *,
    trials: int,
    metric: str,
    seed: int,
    processes: int | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[Tuned]:
    """Tune every arm that is not fixed. KeyError where ``metric`` is no figure of a cell."""
    jobs = [(experiment, arm, places, trials, metric, seed) for arm in experiment.arms if not arm.fixed]
    workers = min(len(jobs), processes or os.cpu_count() or 1)
    if workers <= 1:
        for count, job in enumerate(jobs, 1):
            result = tune_arm(*job)
            done(count)
            yield result
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for count, future in enumerate([pool.submit(tune_arm, *job) for job in jobs], 1):
            yield future.result()
            done(count)


def tune_arm(experiment: Experiment, arm: Arm, places: Places, trials: int, metric: str, seed: int) -> Tuned:
    """Search for one arm."""
    loads = screening_loads(experiment)
    rng = Random(f"tune-{seed}")
    points = [defaults_of(arm)]
    if points[0]:
        points += [draw(arm, rng) for _ in range(trials - 1)]

    def score(point: dict[str, float], run_seed: int) -> float:
        candidate = with_point(arm, point)
        values = []
        for load in loads:
            row = run_cell(experiment, candidate, load, run_seed, places, keep_requests=False).rows[0]
            value = float(row[metric])
            values.append(-value if metric.startswith(HIGHER_IS_BETTER) else value)
        mean = sum(values) / len(values)
        return mean if isfinite(mean) else WORST

    screened = [Trial(point, score(point, seed)) for point in points]
    kept = sorted(screened, key=lambda trial: trial.score)[: max(1, len(screened) // 2)]
    if len(screened) > 1:
        kept = [Trial(t.knobs, 0.5 * (t.score + score(t.knobs, seed + 1))) for t in kept]
    return Tuned(arm.name, min(kept, key=lambda trial: trial.score), screened)


def screening_loads(experiment: Experiment) -> list[Load]:
    """Two loads: the middle one and the highest of those that differ in rate only."""
    plain = [load for load in experiment.loads if not (load.steps or load.operations or load.versions)]
    plain = sorted(plain or experiment.loads, key=lambda load: load.rate_rps or load.speed or 0.0)
    return [plain[(len(plain) - 1) // 2], plain[-1]] if len(plain) > 1 else plain


def defaults_of(arm: Arm) -> dict[str, float]:
    """The arm's knobs as they are, by ``kind.name``."""
    return {
        f"{kind}.{knob.name}": arm.choice(kind).knobs.get(knob.name, knob.default)
        for kind, entries in KINDS.items()
        for knob in entries[arm.choice(kind).policy].knobs
        if knob.name not in UNTUNED
    }


def draw(arm: Arm, rng: Random) -> dict[str, float]:
    """A random point of the arm's knobs."""
    return {
        f"{kind}.{knob.name}": knob.draw(rng)
        for kind, entries in KINDS.items()
        for knob in entries[arm.choice(kind).policy].knobs
        if knob.name not in UNTUNED
    }


def with_point(arm: Arm, point: dict[str, float]) -> Arm:
    """The arm with these knobs."""
    for kind in KINDS:
        mine = {n.split(".", 1)[1]: value for n, value in point.items() if n.startswith(f"{kind}.")}
        if mine:
            arm = arm_with(arm, kind, {**arm.choice(kind).knobs, **mine})
    return arm
