"""Outcomes as columns, made one by one, and columns as deltas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from minds.capacity.cell_columns import CellColumns, cells_together, join_cells
from minds.capacity.columns import Name
from minds.capacity.folds import Delta
from schemas.outcomes import CAUSES


def columns_of(outcomes: Sequence[Any], names: list[Name]) -> Any:
    numbers = []
    for each in outcomes:
        name = (each.pool, each.instance, each.instance_boot, each.region or each.entry_region)
        if name not in names:
            names.append(name)
        numbers.append(names.index(name))

    def array(field: str, unknown: float, kind: str) -> Any:
        values = [getattr(each, field) for each in outcomes]
        return np.array([unknown if value is None else value for value in values], kind)

    return SimpleNamespace(
        name=np.array(numbers, "i4"),
        at_ms=array("at_ms", 0, "i8"),
        cause=np.array([CAUSES.index(each.cause) for each in outcomes], "i1"),
        **{
            field: array(field, math.nan, "f8") for field in ("ttft_ms", "tpot_ms", "queue_ms", "work_tokens")
        },
        **{field: array(field, -1, "i8") for field in ("output_tokens", "wasted_tokens", "deadline_at_ms")},
        within_slo=array("within_slo", False, "?"),
    )


def add_cells(deltas: dict[str, Delta], columns: CellColumns) -> None:
    """Add columns to the deltas of their keys, cell by cell."""
    for place, key in enumerate(columns.keys):
        delta = deltas.setdefault(key, Delta(columns.mark_ms, {}))
        join_cells(delta.cells, cells_together([(columns, place)]))
