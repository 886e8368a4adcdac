"""Windows: slots count what they should, forget by record time only, and don't mind the order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from minds.windows import (
    COARSE_MS,
    COARSE_SLOTS,
    Rings,
    add_slots,
    compact,
    count_outcome,
    forget_old,
    window_stats,
)
from schemas.outcomes import CAUSES

T0 = 1_796_000_000_000


@dataclass
class Ended:
    at_ms: int
    cause: str = "ok"
    within_slo: bool = True
    ttft_ms: float | None = 100.0
    tpot_ms: float | None = 20.0
    queue_ms: float | None = 1.0
    output_tokens: int | None = 10
    wasted_tokens: int | None = 0


def rings_of(outcomes: list[Ended], mark_ms: int = T0) -> Rings:
    rings = Rings()
    for outcome in outcomes:
        slots: dict = {}
        count_outcome(slots, outcome)
        add_slots(rings, slots, mark_ms)
    return rings


def test_each_window_counts_its_own_span() -> None:
    rings = rings_of([Ended(T0 - age) for age in (0, 5_000, 9_000, 30_000, 55_000, 200_000, 289_000)])
    ten, minute, five = window_stats([rings], T0)
    assert (ten.span_ms, ten.attempts) == (10_000, 3)
    assert (minute.span_ms, minute.attempts) == (60_000, 4 if T0 % COARSE_MS < 5_000 else 5)
    assert (five.span_ms, five.attempts) == (300_000, 7)


def test_causes_goodput_and_unknown_figures() -> None:
    outcomes = [Ended(T0, cause=cause, within_slo=cause == "ok", wasted_tokens=3) for cause in CAUSES]
    outcomes.append(Ended(T0, cause="shed", within_slo=False, ttft_ms=None, tpot_ms=None, output_tokens=None))
    ten = window_stats([rings_of(outcomes)], T0)[0]
    assert [getattr(ten, cause) for cause in CAUSES] == [1, 1, 1, 1, 2, 1]
    assert (ten.attempts, ten.good, ten.good_tokens, ten.output_tokens) == (7, 1, 10, 60)
    assert ten.wasted_tokens == 18
    nothing = window_stats([Rings()], T0)[0]
    assert nothing.attempts == 0
    assert nothing.ttft_ms is None


def test_a_fast_clock_empties_nobodys_window() -> None:
    rings = rings_of([Ended(T0 - 1_000), Ended(T0 + 240_000)])
    forget_old(rings, T0)
    assert window_stats([rings], T0)[2].attempts == 1
    assert window_stats([rings], T0 + 240_000)[2].attempts == 2


@given(
    st.lists(st.tuples(st.integers(0, 600_000), st.sampled_from(CAUSES)), max_size=60), st.integers(0, 2**20)
)
def test_order_and_grouping_do_not_matter(drawn: list[tuple[int, str]], seed: int) -> None:
    outcomes = [Ended(T0 + at, cause=cause, ttft_ms=1.0 + at) for at, cause in drawn]
    mark = T0 + 500_000
    reference = rings_of(outcomes, mark)
    forget_old(reference, mark)
    rng = random.Random(seed)
    rng.shuffle(outcomes)
    rings, at = Rings(), 0
    while at < len(outcomes):
        size = rng.randint(1, 8)
        slots: dict = {}
        for outcome in outcomes[at : at + size]:
            count_outcome(slots, outcome)
        add_slots(rings, slots, rng.choice([T0, mark]))
        forget_old(rings, rng.choice([T0, mark]))
        at += size
    forget_old(rings, mark)
    for each in (rings, reference):
        compact(each.fine)
        compact(each.coarse)
    assert rings == reference


def test_rings_are_bounded() -> None:
    rings = rings_of([Ended(T0 + second * 1_000) for second in range(2_000)])
    forget_old(rings, T0 + 2_000_000)
    assert len(rings.coarse) <= COARSE_SLOTS
    assert len(rings.fine) <= 15
