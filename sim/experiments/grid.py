"""The grid of arms x loads x seeds over processes. Results come in the grid's own order, whoever is first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from sim.experiments.cell import CellResult, run_cell
from sim.experiments.spec import Arm, Experiment, Load
from sim.experiments.workload import Places
from sim.oracles.arms import oracle_cell

ORACLE = "oracle: "
"""Oracles are arms of this name and their kind."""


@dataclass(frozen=True)
class Task:
    """One cell that is to be run; ``oracle`` instead of an arm where it is one."""

    load: Load
    seed: int
    arm: Arm | None
    oracle: str | None = None
    keep_requests: bool = False


def tasks_of(experiment: Experiment, keep: str = "first") -> list[Task]:
    """All cells in order: loads, then seeds, then arms, so that neighbours share a workload.

    ``keep``: of which seeds the requests are kept: "first", "all" or "none".
    """
    tasks = []
    for load in experiment.loads:
        for seed in experiment.seeds:
            kept = keep == "all" or (keep == "first" and seed == experiment.seeds[0])
            tasks += [Task(load, seed, arm, keep_requests=kept) for arm in experiment.arms]
            oracles = [kind for kind in experiment.oracles if kind != "static"]
            tasks += [Task(load, seed, None, kind, kept) for kind in oracles]
    return tasks


def run_task(experiment: Experiment, task: Task, places: Places) -> CellResult:
    """One cell; in whatever process."""
    if task.arm is not None:
        return run_cell(experiment, task.arm, task.load, task.seed, places, task.keep_requests)
    name = f"{ORACLE}{task.oracle}"
    return oracle_cell(experiment, task.oracle or "", name, task.load, task.seed, places)


def run_grid(
    experiment: Experiment,
    tasks: Sequence[Task],
    places: Places,
    *,
    processes: int | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[CellResult]:
    """Results in the order of ``tasks``. ``done`` is called with the number of cells finished so far."""
    workers = min(len(tasks), processes or os.cpu_count() or 1)
    if workers <= 1:
        for count, task in enumerate(tasks, 1):
            result = run_task(experiment, task, places)
            done(count)
            yield result
        return
    finished = 0

    def one_more(future: Future[CellResult]) -> None:
        nonlocal finished
        finished += 1
        done(finished)

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = []
        for task in tasks:
            future = pool.submit(run_task, experiment, task, places)
            future.add_done_callback(one_more)
            futures.append(future)
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
