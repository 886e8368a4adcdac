"""The choice of the instance, and the complaints that it must not give rise to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.seeds import pick, unit
from minds.tokenpilot.least_outstanding import (
    Dispatch,
    InstanceLoad,
    Standing,
    choose,
    estimates,
    near_least,
    spread_of,
    standing_of,
    trust_of,
)


def standing(name: str, reading: float | None, trust: float = 1.0, own: int = 0, sent: int = 0) -> Standing:
    return Standing(name, "r", reading, 0.0 if reading is None else trust, own, sent, 0)


standings = st.lists(
    st.builds(
        Standing,
        st.just("i"),
        st.just("r"),
        st.none() | st.floats(0, 500),
        st.floats(0, 1),
        st.integers(0, 50),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=16,
)


def test_trust_falls_in_a_line_to_nothing() -> None:
    assert [trust_of(age, 100) for age in (-5, 0, 100, 150, 200, 900)] == [1, 1, 1, 0.5, 0, 0]
    assert trust_of(1, 0) == 0


@given(standings, st.integers(0, 2**53))
def test_estimates_are_finite_bounded_and_never_below_what_is_our_own(
    items: list[Standing], seed: int
) -> None:
    values = estimates(items)
    assert all(value >= item.own_in_flight for value, item in zip(values, items, strict=True))
    top = max([i.own_in_flight for i in items] + [(i.reading or 0) + i.own_sent_since for i in items])
    assert all(0 <= value <= top + 1e-6 for value in values)
    index = choose(values, seed)
    assert index == choose(values, seed), "the same seed and input, the same choice"
    assert values[index] <= min(values) * 1.1 + 0.5
    assert 0 <= spread_of(values, items) <= 1
    informed = choose(values, seed, items)
    assert informed in near_least(values, spread_of(values, items))
    assert informed in near_least(values), "knowing who sent what only narrows the band"


@given(st.lists(st.integers(0, 60), min_size=1, max_size=16), st.integers(0, 2**53))
def test_a_router_alone_chooses_exactly_the_least(own: list[int], seed: int) -> None:
    items = [standing(f"i{n}", float(count), own=count) for n, count in enumerate(own)]
    values = estimates(items)
    assert values == own
    if sum(own):
        assert spread_of(values, items) == 0
        assert own[choose(values, seed, items)] == min(own)


@pytest.mark.parametrize(("routers", "spread"), [(1, 0.0), (2, 1.0), (16, 1.0)])
def test_the_band_is_whole_from_a_second_router_on(routers: int, spread: float) -> None:
    items = [standing("a", 10.0 * routers, own=10), standing("b", 10.0 * routers + 1, own=10)]
    values = estimates(items)
    assert spread_of(values, items) == pytest.approx(spread, abs=0.06)
    assert {choose(values, seed, items) for seed in range(50)} == ({0} if routers == 1 else {0, 1})


def test_a_few_requests_of_others_make_a_narrow_band() -> None:
    items = [standing("a", 12.0, own=10), standing("b", 12.3, own=10), standing("c", 12.6, own=10)]
    values = estimates(items)
    assert spread_of(values, items) == pytest.approx(6.9 / 30)
    assert {choose(values, seed, items) for seed in range(50)} == {0, 1}
    assert {choose(values, seed) for seed in range(50)} == {0, 1, 2}


@given(st.lists(st.floats(0, 200), min_size=2, max_size=8), st.floats(0.01, 1))
def test_complaint_1_an_unknown_reading_is_neither_idle_nor_full(readings: list[float], trust: float) -> None:
    items = [standing(f"k{n}", reading) for n, reading in enumerate(readings)]
    unknown = estimates([*items, standing("u", None)])[-1]
    assert min(readings) - 1e-6 <= unknown <= max(readings) + 1e-6
    stale = estimates([*items, standing("s", 10_000.0, trust=0.0)])[-1]
    assert stale <= max(readings) + 1e-6, "a reading that has aged out no longer halts its instance"


def test_complaint_1_a_pool_of_unknowns_still_serves_by_own_counts() -> None:
    values = estimates([standing("a", None, own=3), standing("b", None, own=1), standing("c", None, own=2)])
    assert values == [3, 1, 2]
    assert choose(values, 7) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "end", "end_twice", "sample", "nothing", "flap"]), st.integers(0, 9)
        ),
        max_size=60,
    )
)
def test_complaint_3_counts_never_leak_nor_go_negative(steps: list[tuple[str, int]]) -> None:
    load, now = InstanceLoad("i", "b", "r"), 0.0
    open_: list[Dispatch] = []
    old: list[Dispatch] = []
    mine: list[tuple[float, float | None]] = []
    for what, number in steps:
        now += 1.0
        if what == "send":
            open_.append(load.dispatched(now))
            mine.append((now, None))
        elif what in ("end", "end_twice") and open_:
            dispatch = open_.pop(number % len(open_))
            load.finished(dispatch, now)
            mine[mine.index((dispatch.at_ms, None))] = (dispatch.at_ms, now)
            if what == "end_twice":
                load.finished(dispatch, now + 0.5)
        elif what == "sample":
            # the instance sees exactly our open requests and `number` of others
            load.observe(len(open_) + number, now, now)
        elif what == "nothing":
            load.observe(None, None, now)
        elif what == "flap":
            old += open_
            open_, mine, load = [], [], InstanceLoad("i", f"b{now}", "r")
        assert load.in_flight == len(open_)
        sent, ended = load.since_sample()
        assert 0 <= sent <= load.in_flight
        assert ended >= 0
        if load.sampled_at_ms is not None:
            sample = load.sampled_at_ms
            assert sent == sum(1 for at, end in mine if at > sample and end is None)
            assert ended == sum(1 for at, end in mine if at <= sample and end is not None and end > sample)
        assert estimates([standing_of(load, 1.0)])[0] >= 0
    for dispatch in [*open_, *old]:
        dispatch.load.finished(dispatch, now)
    assert load.in_flight == 0


@pytest.mark.parametrize("routers", [4, 16])
def test_complaint_5_many_routers_with_one_old_view_spread(routers: int) -> None:
    """All see the same sample; each corrects it only by its own dispatches."""
    total: Counter[int] = Counter()
    readings = [10.0, 10.2, 10.4, 10.1]
    for router in range(routers):
        loads = [InstanceLoad(f"i{n}", "b", "r") for n in range(4)]
        for load, reading in zip(loads, readings, strict=True):
            load.observe(reading, 0.0, 0.0)
        for number in range(8):
            seen = [standing_of(load, 1.0) for load in loads]
            index = choose(estimates(seen), router * 1000 + number, seen)
            loads[index].dispatched(1.0)
            total[index] += 1
    assert max(total.values()) <= 2 * min(total.values())
    assert set(total) == {0, 1, 2, 3}


def test_own_dispatches_and_ends_correct_an_old_reading() -> None:
    load = InstanceLoad("i", "b", "r")
    before = load.dispatched(1.0)
    load.observe(5.0, 2.0, 2.0)
    load.dispatched(3.0)
    short = load.dispatched(3.5)
    load.finished(short, 4.0)
    assert estimates([standing_of(load, 1.0)]) == [6.0]
    load.finished(before, 4.5)
    assert estimates([standing_of(load, 1.0)]) == [5.0]
    load.observe(9.0, 1.5, 5.0)
    assert load.outstanding == 5.0, "an older sample that comes late is not taken"


def test_no_candidate_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="no instance"):
        choose([], 1)


def test_seeds_are_uniform_enough() -> None:
    counts = Counter(pick(seed, 5) for seed in range(5000))
    assert all(850 < count < 1150 for count in counts.values())
    assert 0.45 < sum(unit(seed) for seed in range(2000)) / 2000 < 0.55
    assert pick(3, 1000, salt=1) != pick(3, 1000, salt=2)
