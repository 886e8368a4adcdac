"""What a rollup tells, key by key: partials, and the cells of keys of which it tells nothing else."""

from __future__ import annotations

from typing import NamedTuple

from minds.capacity.cell_columns import CellColumns, cells_together, join_cells
from minds.capacity.folds import Delta
from minds.merge import Interval, Partial

Grouped = dict[str, list[Partial[Delta]]]
"""The partials of each key."""


class Cells(NamedTuple):
    """The cells that a source's interval adds to keys of which the rollup tells nothing else."""

    interval: Interval
    columns: CellColumns
    others: frozenset[int]
    """The places of keys of which it does: their cells are with their partials."""


def with_partials(grouped: Grouped, interval: Interval, columns: CellColumns) -> Cells:
    """Put the cells of keys that have partials to those: a key takes what a rollup tells of it at once."""
    others = [place for place, key in enumerate(columns.keys) if key in grouped] if grouped else []
    for place in others:
        _to_partials(grouped, interval, columns, place)
    return Cells(interval, columns, frozenset(others))


def as_partials(grouped: Grouped, cells: Cells) -> None:
    """Make partials of all the cells that are in none yet."""
    for place in range(len(cells.columns.keys)):
        if place not in cells.others:
            _to_partials(grouped, cells.interval, cells.columns, place)


def _to_partials(grouped: Grouped, interval: Interval, columns: CellColumns, place: int) -> None:
    mine = cells_together([(columns, place)])
    held = grouped.setdefault(columns.keys[place], [])
    for partial in held:
        if partial.source == interval.source:
            join_cells(partial.delta.cells, mine)
            return
    held.append(Partial(*interval, Delta(columns.mark_ms, mine)))
