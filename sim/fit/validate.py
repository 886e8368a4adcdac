"""How far S1 to S4 are from what was measured, and from a refit that has not seen the points it is held to.

The coefficients of the sets were once fitted to all of these points. So their own error says how well the
model *describes*; the error of a refit on two thirds of the points, on the third that it has not seen, says
how well it *predicts*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.engine.step_model import PARAM_SETS
from sim.fit.predict import coefficients, features, simulate
from sim.fit.profiles import Point, points_of

HELD_OUT_EVERY = 3
"""Every third point is held out, in the order of the points: a fixed split, spread over all lengths."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FitRow:
    """One parameter set and one measured quantity. Errors are means of absolute relative errors.

    ``given``: the set as it is; ``refit``: coefficients fitted to the fitted points only. ``simulated``: the
    given set on the simulated instance instead of the closed form (over all points; None where the quantity
    is a single step). ``first_token_ratio``: median of measured over simulated TTFT, front end included.
    """

    name: str
    quantity: str
    fitted_points: int
    held_out_points: int
    given_fitted: float
    given_held_out: float
    refit_fitted: float
    refit_held_out: float
    simulated: float | None
    first_token_ratio: float | None


def refit(points: Sequence[Point]) -> Floats:
    """Non-negative a, b, c, d, e with the least squares of *relative* errors.

    Coefficients that come out negative are set to zero, the most negative one first, and the rest is fitted
    again. ValueError without any point.
    """
    if not points:
        raise ValueError("There is nothing to fit: no point was given.")
    measured = np.array([point.measured_ms for point in points])
    design = np.array([features(point) for point in points]) / measured[:, None]
    kept = [column for column in range(design.shape[1]) if design[:, column].any()]
    fitted = np.zeros(design.shape[1])
    while kept:
        scale = np.linalg.norm(design[:, kept], axis=0)
        values = np.linalg.lstsq(design[:, kept] / scale, np.ones(len(points)), rcond=None)[0] / scale
        if (values >= 0.0).all():
            fitted[kept] = values
            break
        del kept[int(np.argmin(values * scale))]
    return fitted


def relative_error(values: Floats, points: Sequence[Point]) -> float:
    """Mean absolute relative error of coefficients over points; NaN without any."""
    if not points:
        return float("nan")
    measured = np.array([point.measured_ms for point in points])
    predicted = np.array([features(point) for point in points]) @ values
    return float(np.abs(predicted / measured - 1.0).mean())


def validate(directory: Path, names: Sequence[str] = tuple(PARAM_SETS)) -> list[FitRow]:
    """The table of all sets, a row for each quantity. ProfileError where a profile is missing."""
    rows = []
    for name in names:
        points = points_of(name, directory)
        held = [point for number, point in enumerate(points) if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
        fitted = [
            point for number, point in enumerate(points) if number % HELD_OUT_EVERY != HELD_OUT_EVERY - 1
        ]
        given, again = coefficients(PARAM_SETS[name]), refit(fitted)
        for quantity in dict.fromkeys(point.quantity for point in points):
            fit = [point for point in fitted if point.quantity == quantity]
            out = [point for point in held if point.quantity == quantity]
            simulated = ratio = None
            if quantity == "tpot":
                simulated, ratio = _simulated(name, [*fit, *out])
            rows.append(
                FitRow(
                    name,
                    quantity,
                    len(fit),
                    len(out),
                    relative_error(given, fit),
                    relative_error(given, out),
                    relative_error(again, fit),
                    relative_error(again, out),
                    simulated,
                    ratio,
                )
            )
    return rows


def _simulated(name: str, points: Sequence[Point]) -> tuple[float, float]:
    errors, ratios = [], []
    for point in points:
        tpot_ms, ttft_ms = simulate(PARAM_SETS[name], point)
        errors.append(abs(tpot_ms / point.measured_ms - 1.0))
        if point.first_token_ms is not None:
            ratios.append(point.first_token_ms / ttft_ms)
    return float(np.mean(errors)), float(np.median(ratios))
