"""The knee of a fleet: the highest rate at which a given share of the intents is still good."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.experiments.cell import run_cell
from sim.experiments.spec import Arm, Experiment, Load
from sim.experiments.workload import Places


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried, and the share of good intents there, a mean over seeds."""

    rate_rps: float
    good_share: float


@dataclass(frozen=True, slots=True)
class KneeFound:
    """The knee, and all that was tried on the way."""

    rate_rps: float
    probes: list[Probe]


def find_knee(
    experiment: Experiment, arm: Arm, share: float, places: Places, *, seeds: int = 2, rounds: int = 7
) -> KneeFound:
    """Bisect between a rate where more than ``share`` of the intents are good and one where fewer are.

    The first load's conditions hold; ``rounds`` halvings leave 1% of the first interval. ValueError where
    the share isn't met at a hundredth, or is still met at a hundred times, of the first load's rate.
    """
    first = experiment.loads[0]
    probes: list[Probe] = []

    def good_share(factor: float) -> float:
        load = scaled(first, factor)
        found, rates = [], []
        for seed in experiment.seeds[:seeds]:
            row = run_cell(experiment, arm, load, seed, places, keep_requests=False).rows[0]
            found.append(row["good_share_intents"])
            rates.append(row["offered"] / row["window_s"])
        probes.append(Probe(float(np.mean(rates)), float(np.mean(found))))
        return float(np.mean(found))

    low = high = 1.0
    if good_share(1.0) >= share:
        while good_share(high := high * 1.6) >= share:
            low = high
            if high > 100:
                raise ValueError("No knee: even a hundred times the first load is served well.")
    else:
        while good_share(low := low / 1.6) < share:
            high = low
            if low < 0.01:
                raise ValueError("No knee: even a hundredth of the first load isn't served well.")
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        if good_share(middle) >= share:
            low = middle
        else:
            high = middle
    best = max((probe for probe in probes if probe.good_share >= share), key=lambda probe: probe.rate_rps)
    return KneeFound(best.rate_rps, sorted(probes, key=lambda probe: probe.rate_rps))


def scaled(load: Load, factor: float) -> Load:
    """The same load at another rate."""
    changed: dict[str, object] = {"name": f"{load.name} x {factor:.3g}"}
    if load.rate_rps is not None:
        changed["rate_rps"] = load.rate_rps * factor
    if load.speed is not None:
        changed["speed"] = load.speed * factor
    return load.model_copy(update=changed)
