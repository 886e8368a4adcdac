"""Columns summed for all keys at once hold what their cells hold one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity import columns, kept_cells
from minds.capacity.cell_columns import CellColumns
from minds.capacity.columns import ColumnFold, Keys, Name
from minds.capacity.folds import Delta
from minds.capacity.kept_cells import summed, together
from minds.windows import compact
from tests.minds.capacity.outcome_columns import add_cells, columns_of

T0 = 1_796_000_000_000


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    columns.warm_up()
    kept_cells.warm_up()


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3_000),
        st.sampled_from(["i1", "i2", None]),
        st.sampled_from(["b0", "b1", None]),
        st.sampled_from([None, 3.0, 80.0]),
    ),
    min_size=1,
    max_size=12,
)


def cells_of(events: list[tuple[int, str | None, str | None, float | None]]) -> CellColumns:
    names: list[Name] = []
    outcomes: list[Any] = [
        SimpleNamespace(
            pool="m@v1", instance=instance, instance_boot=boot, region="eu", entry_region="eu", cause="ok",
            at_ms=T0 + at, ttft_ms=value, tpot_ms=None, queue_ms=value, output_tokens=5, wasted_tokens=None,
            within_slo=True, deadline_at_ms=None, work_tokens=None,
        )
        for at, instance, boot, value in events
    ]  # fmt: skip
    fold = ColumnFold(Keys(names))
    fold.take(columns_of(outcomes, names))
    return fold.cells(T0 + 3_000)[0]


def deltas_of(parts: list[CellColumns]) -> dict[str, Delta]:
    deltas: dict[str, Delta] = {}
    for each in parts:
        add_cells(deltas, each)
    for delta in deltas.values():
        for slots in delta.cells.values():
            compact(slots)
    return deltas


@given(st.lists(EVENTS, min_size=2, max_size=4))
def test_the_sum_holds_what_they_hold(drawn: list[Any]) -> None:
    parts = [cells_of(events) for events in drawn]
    sums = summed(parts)
    assert sums.wrong() is None
    assert deltas_of([sums]) == deltas_of(parts)
    assert len({(key, *row[:2]) for n, key in enumerate(sums.keys) for row in sums.rows_of(n)}) == len(
        sums.seconds
    )


@given(st.lists(EVENTS, min_size=2, max_size=4))
def test_together_sets_the_newest_apart_and_counts_the_others(drawn: list[Any]) -> None:
    parts = [cells_of(events) for events in drawn]
    found = together(parts)
    assert found.newest is parts[-1]
    assert deltas_of([found.before]) == deltas_of(parts[:-1])
    for key, place in found.places.items():
        assert found.before.keys[place] == key
        assert found.times[key] == sum(key in each.keys for each in parts[:-1])
