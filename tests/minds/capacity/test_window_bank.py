"""The bank's windows are those of the rings, whatever is added and however time moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.window_bank import AHEAD_S, ALL_BOOTS, CellRows, WindowBank, warm_up
from minds.windows import COUNTS, SPANS_MS, Cell, Rings, add_slots, forget_old, window_stats

T0 = 1_796_000_000
WIDTH = len(COUNTS)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def counts_of(bank: WindowBank, lane: int, now_ms: int) -> list[list[int]]:
    bank.roll(np.array([lane]), now_ms)
    return [list(map(int, window)) for window in bank.sums[lane]]


def cell(attempts: int) -> Cell:
    return Cell(attempts=attempts, ok=attempts, output_tokens=7 * attempts)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(-AHEAD_S, 400), st.integers(1, 5)), max_size=40),
    st.integers(0, 30),
)
def test_windows_are_those_of_the_rings(drawn: list[tuple[int, int, int]], later_s: int) -> None:
    bank, rings, now_s = WindowBank(), Rings({}, {}), T0
    lane = bank.lane()
    for passed_s, age_s, attempts in drawn:
        now_s += passed_s
        if passed_s % 3 == 0:
            bank.roll(np.array([lane]), now_s * 1000)
        rows = CellRows()
        rows.note(lane, 0, now_s - age_s, cell(attempts))
        rows.add_to(bank, now_s * 1000)
        add_slots(rings, {now_s - age_s: cell(attempts)}, now_s * 1000)
        forget_old(rings, now_s * 1000)
    assert not bank.ahead[lane]
    now_ms = (now_s + later_s) * 1000
    wanted = window_stats([rings], now_ms)
    found = counts_of(bank, lane, now_ms)
    assert found == [[getattr(window, name) for name in COUNTS] for window in wanted]
    other = bank.lane()
    slots = [(slot, True, held) for slot, held in rings.fine.items()]
    bank.fill(other, slots + [(slot, False, held) for slot, held in rings.coarse.items()], now_ms)
    assert counts_of(bank, other, now_ms) == found


def test_what_does_not_fit_is_marked_until_the_lane_is_filled_anew() -> None:
    bank = WindowBank()
    lane, far = bank.lane(), T0 + AHEAD_S + 1
    bank.fill(lane, [(far, True, cell(1))], T0 * 1000)
    assert bank.ahead[lane]
    bank.fill(lane, [(far, True, cell(1))], far * 1000)
    assert not bank.ahead[lane]
    assert counts_of(bank, lane, far * 1000)[0][0] == 1
    bank.roll(np.array([lane]), (far - 5) * 1000)  # our own clock was set back
    assert bank.ahead[lane]


def test_only_the_boot_that_counts_and_outcomes_that_name_none_are_added() -> None:
    bank = WindowBank()
    lane, every = bank.lane(), bank.lane()
    bank.boot[lane] = bank.number_of("b1")
    assert bank.boot[every] == ALL_BOOTS
    rows = CellRows()
    for to in (lane, every):
        for boot in ("b0", "b1", ""):
            rows.note(to, bank.number_of(boot), T0, cell(1))
    rows.add_to(bank, T0 * 1000)
    assert [counts_of(bank, each, T0 * 1000)[0][0] for each in (lane, every)] == [2, 3]


def test_lanes_are_used_again_and_grow_with_what_they_hold() -> None:
    bank = WindowBank(1)
    first = bank.lane()
    bank.fill(first, [(T0, True, cell(3))], T0 * 1000)
    more = [bank.lane() for _ in range(5)]
    assert len({first, *more}) == 6
    assert counts_of(bank, first, T0 * 1000)[-1][0] == 3
    bank.boot[first] = bank.number_of("b1")
    bank.release(first)
    assert bank.lane() == first
    assert bank.boot[first] == ALL_BOOTS
    assert counts_of(bank, first, T0 * 1000) == [[0] * WIDTH] * len(SPANS_MS)


def test_boots_that_count_nowhere_are_forgotten_once_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minds.capacity.window_bank._MOST_BOOTS", 3)
    bank = WindowBank()
    lane = bank.lane()
    bank.boot[lane] = bank.number_of("kept")
    gone = bank.number_of("gone")
    bank.number_of("new")
    assert bank.number_of("kept") == bank.boot[lane]
    assert bank.number_of("") == 0
    assert bank.number_of("gone") > gone
