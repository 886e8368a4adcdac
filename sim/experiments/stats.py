"""Means over seeds, and paired differences of two arms, with 95% intervals of Student's t.

Arms are paired by seed: the same seed has the same intents, so what differs is what was decided. An infinite
figure (a percentile that falls on an intent without an answer) has no interval and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt
from typing import Any

import numpy as np

# 97.5% points of Student's t for 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
_T_FAR = 1.96
_NO_GAP = 0.01


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and the half width of its 95% interval; NaN where there is none (one seed, or infinities)."""

    mean: float
    half: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 0 out (for a difference)."""
        return isfinite(self.half) and abs(self.mean) > self.half


def estimate(values: Sequence[float]) -> Estimate:
    """Of a sample. An infinity in it makes the mean infinite; no values make it NaN."""
    count = len(values)
    if count == 0 or any(value != value for value in values):
        return Estimate(nan, nan)
    if any(not isfinite(value) for value in values):
        return Estimate(inf if inf in values else -inf, nan)
    mean = float(np.mean(values))
    if count == 1:
        return Estimate(mean, nan)
    t = _T[count - 2] if count - 2 < len(_T) else _T_FAR
    return Estimate(mean, t * float(np.std(values, ddof=1)) / sqrt(count))


class Cells:
    """The rows of a run, by arm, load, seed and class."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = {(r["arm"], r["load"], r["seed"], r["service_class"]): r for r in rows}
        self.arms = list(dict.fromkeys(r["arm"] for r in rows))
        self.loads = list(dict.fromkeys(r["load"] for r in rows))
        self.seeds = list(dict.fromkeys(r["seed"] for r in rows))
        self.classes = sorted({r["service_class"] for r in rows} - {""})

    def values(self, arm: str, load: str, metric: str, service_class: str = "") -> dict[int, float]:
        """A figure by seed; seeds without it are left out."""
        found = {}
        for seed in self.seeds:
            row = self._rows.get((arm, load, seed, service_class))
            value = None if row is None else row.get(metric)
            if value is not None:
                found[seed] = float(value)
        return found

    def mean(self, arm: str, load: str, metric: str, service_class: str = "") -> Estimate:
        """Over the seeds."""
        return estimate(list(self.values(arm, load, metric, service_class).values()))

    def paired(
        self, arm: str, base: str, load: str, metric: str, service_class: str = "", relative: bool = False
    ) -> Estimate:
        """The mean of arm minus base over the seeds that both have; ``relative``: divided by the base."""
        one = self.values(arm, load, metric, service_class)
        other = self.values(base, load, metric, service_class)
        differences = []
        for seed in one.keys() & other.keys():
            a, b = one[seed], other[seed]
            if a == inf and b == inf:
                return Estimate(nan, nan)
            difference = a - b
            if relative:
                difference = difference / b if b and isfinite(b) else (nan if not isfinite(b) else inf)
            differences.append((seed, difference))
        return estimate([value for _, value in sorted(differences)])

    def gap_closed(self, arm: str, base: str, oracle: str, load: str, metric: str) -> Estimate:
        """``(base - arm)/(base - oracle)`` by seed: 0 is the base, 1 the oracle.

        NaN where the base lies within 1% of the oracle: there is no gap to close.
        """
        arms, bases = self.values(arm, load, metric), self.values(base, load, metric)
        oracles = self.values(oracle, load, metric)
        ratios = []
        for seed in sorted(arms.keys() & bases.keys() & oracles.keys()):
            gap = bases[seed] - oracles[seed]
            wide = isfinite(gap) and abs(gap) > _NO_GAP * abs(bases[seed])
            ratios.append((bases[seed] - arms[seed]) / gap if wide else nan)
        return estimate(ratios)
