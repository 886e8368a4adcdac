"""Means, paired differences and intervals."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from sim.experiments.stats import Cells, estimate


def rows(**by_arm: list[float]) -> list[dict[str, object]]:
    """One figure for each arm and seed."""
    return [
        {"arm": arm, "load": "l", "seed": seed, "service_class": "", "ttft": value}
        for arm, values in by_arm.items()
        for seed, value in enumerate(values)
    ]


def test_the_interval_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776 * 1.5811388 / 5**0.5)


def test_pairing_takes_out_what_seeds_have_in_common() -> None:
    cells = Cells(rows(base=[10.0, 20.0, 30.0], arm=[9.0, 19.1, 28.9]))
    difference = cells.paired("arm", "base", "l", "ttft")
    assert difference.mean == pytest.approx(-1.0)
    assert difference.differs
    assert cells.mean("arm", "l", "ttft").half > 10 * difference.half
    relative = cells.paired("arm", "base", "l", "ttft", relative=True)
    assert relative.mean == pytest.approx((-0.1 - 0.045 - 1.1 / 30) / 3)


def test_infinite_and_missing_figures_have_no_interval() -> None:
    cells = Cells(rows(base=[inf, inf], arm=[1.0, 2.0]))
    assert cells.mean("base", "l", "ttft").mean == inf
    assert cells.paired("arm", "base", "l", "ttft").mean == -inf
    assert not cells.paired("arm", "base", "l", "ttft").differs
    assert isnan(cells.paired("base", "base", "l", "ttft").mean)
    assert isnan(estimate([]).mean)
    assert isnan(estimate([1.0, nan]).mean)
    assert isnan(estimate([1.0]).half)


def test_gap_closed_is_none_at_the_base_and_all_at_the_oracle() -> None:
    cells = Cells(rows(base=[10.0, 12.0], arm=[4.0, 6.0], oracle=[2.0, 4.0]))
    assert cells.gap_closed("base", "base", "oracle", "l", "ttft").mean == 0.0
    assert cells.gap_closed("oracle", "base", "oracle", "l", "ttft").mean == 1.0
    assert cells.gap_closed("arm", "base", "oracle", "l", "ttft").mean == pytest.approx(0.75)
