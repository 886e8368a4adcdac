"""When rows are made again: at their heartbeat after the last publication, or when age changes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from minds.capacity.registers import READING_VALID_MS
from minds.capacity.rows import QUIET_VALID_MS, ROW_VALID_MS, SILENT_LEAVES_MS
from streams.shown import Due, Owned, due_of

T0 = 1_796_000_000_000
PLACE = ("eu", "m@v1")


def row(sampled_at_ms: int | None = None, valid_for_ms: float = ROW_VALID_MS) -> Any:
    return SimpleNamespace(instance="i-1", sampled_at_ms=sampled_at_ms, valid_for_ms=valid_for_ms)


def test_a_row_is_due_at_its_heartbeat_or_when_age_changes_it() -> None:
    assert due_of(row(), T0, T0, 2_500.0, 25_000.0) == Due(2_500.0, T0 + SILENT_LEAVES_MS + 1)
    assert due_of(row(valid_for_ms=QUIET_VALID_MS), T0, T0, 2_500.0, 25_000.0).beat_ms == 25_000.0
    sampled = due_of(row(T0 - 1_000), T0, T0, 2_500.0, 25_000.0)
    assert sampled.changes_ms == T0 - 1_000 + READING_VALID_MS + 1
    gone = due_of(row(), T0 - int(SILENT_LEAVES_MS) - 5, T0, 2_500.0, 25_000.0)
    assert gone.changes_ms == float("inf")


def test_a_row_that_was_published_meanwhile_is_due_later_but_never_beyond_what_age_changes() -> None:
    owned = Owned({})
    owned.show("k", row(), PLACE, Due(2_500.0, T0 + 4_000.0), T0)
    assert owned.next_due_ms() == T0 + 2_500
    owned.instances["k"].published_ms = T0 + 1_000
    assert list(owned.due(T0 + 2_500)) == []
    assert list(owned.due(T0 + 3_499)) == []
    owned.instances["k"].published_ms = T0 + 3_000
    assert list(owned.due(T0 + 3_999)) == []
    assert list(owned.due(T0 + 4_000)) == ["k"]
    assert list(owned.due(T0 + 9_000)) == [], "It is queued again when it is shown."
    owned.show("k", row(), PLACE, Due(2_500.0, float("inf")), T0 + 9_000)
    assert list(owned.due(T0 + 11_500)) == ["k"]


def test_a_row_that_is_gone_is_never_due() -> None:
    owned = Owned({})
    owned.show("k", row(), PLACE, Due(100.0, float("inf")), T0)
    assert owned.drop("k")
    assert not owned.drop("k")
    assert list(owned.due(T0 + 1_000)) == []
    assert owned.next_due_ms() == float("inf")
