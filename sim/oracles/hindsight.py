"""Oracle 4: the best static setting in hindsight: for each load, the static cap that did best in the run.

Nobody knows it beforehand; a loop that adapts has to come close to it while the load stands still, and to
beat it when the load moves. It is taken from the run's own arms with a static cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.experiments.spec import Experiment
from sim.experiments.stats import Cells

NAME = "oracle: static"


def hindsight_rows(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the arm with a static cap that has the most good tokens under each load, by another name."""
    static = [arm.name for arm in experiment.arms if arm.admission.policy == "static_cap"]
    if "static" not in experiment.oracles or not static:
        return []
    cells = Cells(rows)
    found: list[dict[str, Any]] = []
    for load in cells.loads:
        means = {arm: cells.mean(arm, load, "goodput_tokens_per_s").mean for arm in static}
        best = max(means, key=lambda arm: means[arm])
        found += [
            {**row, "arm": NAME, "best_static": float(static.index(best))}
            for row in rows
            if row["arm"] == best and row["load"] == load
        ]
    return found
