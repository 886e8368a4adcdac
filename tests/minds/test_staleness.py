"""When age alone makes another quality of a figure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minds.staleness import changes_at_ms, quality_of

VALID_MS = 3_000


@given(st.integers(-1_000, 3 * VALID_MS))
def test_a_figure_keeps_its_quality_until_then_and_not_at_it(age_ms: int) -> None:
    at_ms, now_ms = 10_000, 10_000 + age_ms
    turn_ms = changes_at_ms(at_ms, now_ms, VALID_MS)
    now = quality_of(age_ms, VALID_MS)
    assert (turn_ms == float("inf")) == (now == "unknown")
    if now != "unknown":
        assert quality_of(turn_ms - 1 - at_ms, VALID_MS) == now
        assert quality_of(turn_ms - at_ms, VALID_MS) != now
