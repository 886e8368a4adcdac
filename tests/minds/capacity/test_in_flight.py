"""In flight by the log: decisions less outcomes, in any order, right again by itself, else unknown."""

from __future__ import annotations

import copy
import math
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.in_flight import (
    FARTHEST_MS,
    KEPT_AFTER_MS,
    KNOWN_FOR_MS,
    SLOT_MS,
    Flights,
    InFlight,
    add_flights,
    count_decision,
    count_end,
    count_slot,
    forget_old,
    in_flight_of,
)
from minds.capacity.in_flight_columns import ends_by_slot, warm_up

T0 = 1_796_000_000_000


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def attempt(work: float | None = 100.0, *, boot: str | None = "b0", deadline_ms: int = 60_000) -> Any:
    """As much of a decision, or of its outcome, as is counted."""
    return SimpleNamespace(instance_boot=boot, at_ms=T0, deadline_at_ms=T0 + deadline_ms, work_tokens=work)


def flights(decided: list[Any], ended: list[Any] = [], record_ms: int = T0) -> InFlight:  # noqa: B006
    made: InFlight = {}
    for one in decided:
        count_decision(made, one, record_ms)
    for one in ended:
        count_end(made, one)
    return made


def read(*parts: InFlight, boot: str = "b0", now_ms: int = T0) -> tuple[float | None, float | None]:
    found = in_flight_of(parts, boot, now_ms)
    return found.requests.value, found.work_tokens.value


def test_dispatched_less_ended() -> None:
    one, two, three = attempt(100.5), attempt(20.25), attempt(3.0, deadline_ms=90_000)
    assert read(flights([one, two, three])) == (3.0, 123.75)
    assert read(flights([one, two, three], [two])) == (2.0, 103.5)
    assert read(flights([one, two, three]), flights([], [one, three])) == (1.0, 20.25)
    assert read(flights([one], [one])) == (0.0, 0.0)


def test_unknown_without_decisions_and_long_after_the_last() -> None:
    assert read({}) == (None, None)
    assert read(flights([], [attempt()])) == (None, None)
    done = flights([attempt()], [attempt()])
    assert read(done, now_ms=T0 + KNOWN_FOR_MS) == (0.0, 0.0)
    assert read(done, now_ms=T0 + KNOWN_FOR_MS + 1) == (None, None)


def test_each_boot_counts_its_own_and_what_names_none() -> None:
    made = flights([attempt(boot="b0"), attempt(boot="b1"), attempt(boot=None)])
    assert read(made, boot="b0") == (2.0, 200.0)
    assert read(made, boot="b2") == (1.0, 100.0)


def test_an_end_without_its_decision_takes_nothing_from_other_deadlines() -> None:
    made = flights([attempt()], [attempt(deadline_ms=5_000), attempt(deadline_ms=90_000)])
    assert read(made) == (1.0, 100.0)


def test_what_never_balances_is_forgotten() -> None:
    made = flights([attempt()], [attempt(deadline_ms=30_000)])
    late = T0 + 60_000 + SLOT_MS + KEPT_AFTER_MS
    assert read(made, now_ms=late) == (0.0, 0.0)
    forget_old(made, late)
    assert made == {"b0": Flights(T0, {})}
    forget_old(made, T0 + KNOWN_FOR_MS + 1)
    assert made == {}


def test_a_lost_request_that_ends_after_all_is_wrong_for_its_deadline_only() -> None:
    lost, other = attempt(), attempt(deadline_ms=120_000)
    made = flights([lost, other], [lost, lost])
    assert read(made) == (1.0, 100.0)
    forget_old(made, T0 + 60_000 + SLOT_MS + KEPT_AFTER_MS)
    assert {boot: list(each.slots) for boot, each in made.items()} == {"b0": [(T0 + 120_000) // SLOT_MS]}


def test_a_deadline_beyond_all_policies_is_not_counted() -> None:
    far = attempt(deadline_ms=FARTHEST_MS + 1)
    assert read(flights([far], [far])) == (0.0, 0.0)
    assert all(not each.slots for each in flights([far], [far, far]).values())


events = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(["b0", "b1", None]),
        st.integers(-400_000, 400_000),
        st.one_of(st.none(), st.floats(0, 1e6)),
        st.integers(0, 100_000),
    ),
    max_size=30,
)


def counted(drawn: list[Any]) -> InFlight:
    made: InFlight = {}
    for decided, boot, deadline_ms, work, record_ms in drawn:
        one = attempt(work, boot=boot, deadline_ms=deadline_ms)
        if decided:
            count_decision(made, one, T0 + record_ms)
        else:
            count_end(made, one)
    return made


@given(events, st.integers(0, 2**20))
def test_deltas_add_up_in_any_order_and_however_they_are_cut(drawn: list[Any], seed: int) -> None:
    mark_ms = T0 + 100_000
    reference = counted(drawn)
    forget_old(reference, mark_ms)
    rng = random.Random(seed)
    again = list(drawn)
    rng.shuffle(again)
    closed: InFlight = {}
    parts = [again[at : at + 4] for at in range(0, len(again), 4)]
    for part in parts[:-1]:
        delta = msgspec.json.decode(msgspec.json.encode(counted(part)), type=dict[str, Flights])
        before = copy.deepcopy(delta)
        add_flights(closed, delta)
        assert delta == before
        if rng.random() < 0.5:
            forget_old(closed, mark_ms)
    opened = [counted(part) for part in parts[-1:]]
    for boot in ("b0", "b1"):
        assert in_flight_of([closed, *opened], boot, mark_ms) == in_flight_of([reference], boot, mark_ms)
    for part in opened:
        add_flights(closed, part)
    forget_old(closed, mark_ms)
    assert closed == reference


ends = st.lists(
    st.tuples(
        st.integers(-1, 2),
        st.integers(-200_000, 200_000) | st.just(FARTHEST_MS + 1),
        st.one_of(st.none(), st.floats(0, 1e9)),
    ),
    max_size=40,
)


@given(ends)
def test_columns_count_as_one_by_one(drawn: list[Any]) -> None:
    names = ["", "b0", "b1"]
    expected: InFlight = {}
    for group, deadline_ms, work in drawn:
        if group >= 0:
            count_end(expected, attempt(work, boot=names[group], deadline_ms=deadline_ms))
    found: InFlight = {}
    for group, slot, attempts, work in ends_by_slot(
        np.array([group for group, _, _ in drawn], np.int64),
        np.array([T0 + deadline_ms for _, deadline_ms, _ in drawn], np.int64),
        np.array([math.nan if work is None else work for _, _, work in drawn], np.float64),
        np.full(len(drawn), T0, np.int64),
    ):
        count_slot(found, names[group], slot, attempts, work)
    assert found == expected
