"""Signals: late, lost and wrong samples; own dispatches at once, those of others through the log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.des.instance import Reading
from sim.des.prefix_index import PlacementLog, PrefixIndex
from sim.des.signals import UNKNOWN_AFTER_MS, RouterSignals, SignalBoard, SignalOptions
from sim.des.views import CandidatesView


def view(signals: RouterSignals, now_ms: float, count: int = 2) -> CandidatesView:
    signals.refresh(now_ms)
    kv_tokens = np.full(count, 1_000.0)
    return CandidatesView(now_ms, np.arange(count), signals, kv_tokens, ("S2",) * count)


def board(**options: float) -> SignalBoard:
    return SignalBoard(2, SignalOptions(**options), seed=1)


def test_a_sample_is_seen_after_its_delay_and_not_before() -> None:
    seen = board(delay_ms=50.0)
    signals = RouterSignals(seen, None)
    seen.take(1_000.0, [Reading(3, 4, 0.5, 10), Reading(0, 1, 0.1, 5)])
    early = view(signals, 1_049.0)
    assert np.isnan(early.waiting).all()
    assert np.isinf(early.age_ms).all()
    late = view(signals, 1_060.0)
    assert late.waiting.tolist() == [3.0, 0.0]
    assert late.kv_usage.tolist() == [0.5, 0.1]
    assert late.age_ms.tolist() == [60.0, 60.0]
    assert late.outstanding.tolist() == [7.0, 1.0]


def test_a_lost_sample_leaves_the_old_one_and_no_sample_is_unknown_not_zero() -> None:
    seen = board(delay_ms=0.0, loss=1.0)
    signals = RouterSignals(seen, None)
    seen.take(0.0, [Reading(3, 4, 0.5, 10), Reading(0, 1, 0.1, 5)])
    nothing = view(signals, 10.0)
    assert np.isnan(nothing.running).all()
    assert nothing.outstanding.tolist() == [0.0, 0.0]  # nobody is known: the own counts
    known = board(delay_ms=0.0)
    signals = RouterSignals(known, None)
    known.take(0.0, [Reading(3, 4, 0.5, 10), None])
    half = view(signals, 1.0)
    assert np.isnan(half.waiting[1])
    assert half.outstanding.tolist() == [7.0, 7.0]  # the unknown one counts like the known
    old = view(signals, UNKNOWN_AFTER_MS + 1.0)
    assert np.isnan(old.waiting).all()


def test_own_dispatches_count_at_once_and_are_settled_by_the_next_sample() -> None:
    seen = board(delay_ms=50.0)
    signals = RouterSignals(seen, None)
    seen.take(0.0, [Reading(0, 2, 0.1, 0), Reading(0, 2, 0.1, 0)])
    assert view(signals, 60.0).outstanding.tolist() == [2.0, 2.0]
    first = signals.dispatched(70.0, 0, 100, ())
    signals.dispatched(190.0, 0, 300, ())
    now = view(signals, 191.0)
    assert now.outstanding.tolist() == [4.0, 2.0]
    assert now.own_sent_tokens.tolist() == [400.0, 0.0]
    seen.take(150.0, [Reading(1, 2, 0.1, 0), Reading(0, 2, 0.1, 0)])  # has the first, not the second
    now = view(signals, 201.0)
    assert now.own_sent.tolist() == [1.0, 0.0]
    assert now.outstanding.tolist() == [4.0, 2.0]
    signals.ended(210.0, first)  # the sample still counts it
    now = view(signals, 211.0)
    assert now.own_ended.tolist() == [1.0, 0.0]
    assert now.own_in_flight.tolist() == [1.0, 0.0]
    assert now.outstanding.tolist() == [3.0, 2.0]


def test_dispatches_of_others_come_with_the_log() -> None:
    seen = board(delay_ms=0.0)
    log = PlacementLog([10, 10])
    one, other = RouterSignals(seen, log), RouterSignals(seen, log)
    seen.take(0.0, [Reading(0, 0, 0.0, 0), Reading(0, 0, 0.0, 0)])
    dispatch = one.dispatched(100.0, 1, 1_000, (1, 2))
    other.told(150.0, dispatch)
    assert view(other, 149.0).outstanding.tolist() == [0.0, 0.0]
    assert view(other, 149.0).matched_tokens((1, 2, 3)).tolist() == [0.0, 0.0]
    assert view(one, 149.0).matched_tokens((1, 2, 3)).tolist() == [0.0, 1_024.0]  # its own, at once
    now = view(other, 150.0)
    assert now.outstanding.tolist() == [0.0, 1.0]
    assert now.logged_sent_tokens.tolist() == [0.0, 1_000.0]
    assert now.matched_tokens((1, 2, 3)).tolist() == [0.0, 1_024.0]
    seen.take(200.0, [Reading(0, 0, 0.0, 0), Reading(0, 1, 0.0, 0)])
    now = view(other, 200.0)
    assert now.logged_sent.tolist() == [0.0, 0.0]
    assert now.outstanding.tolist() == [0.0, 1.0]


def test_errors_are_seeded_and_multiply() -> None:
    readings = [Reading(100, 100, 0.5, 1_000), Reading(0, 10, 0.9, 10)]

    def seen(seed: int) -> np.ndarray:
        noisy = SignalBoard(2, SignalOptions(delay_ms=0.0, relative_error=0.3), seed)
        noisy.take(0.0, readings)
        noisy.advance(0.0)
        return noisy.columns

    assert (seen(1) == seen(1)).all()
    assert (seen(1) != seen(2)).any()
    assert (seen(1)[2] <= 1.0).all()
    assert seen(1)[0, 1] == 0.0  # nothing stays nothing
    assert seen(1)[0, 0] != 100.0


@pytest.mark.parametrize("bad", [{"sample_every_ms": 0.0}, {"loss": 1.5}, {"delay_ms": -1.0}])
def test_impossible_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        SignalOptions(**bad)


@given(
    st.lists(st.tuples(st.integers(0, 11), st.lists(st.integers(0, 6), max_size=6)), min_size=1, max_size=40),
    st.lists(st.integers(0, 6), max_size=6),
)
def test_the_prefix_index_equals_one_set_for_each_instance(
    placements: list[tuple[int, list[int]]], asked: list[int]
) -> None:
    """Chained ids: a block id stands for all before it, so equal chains give equal ids."""

    def chain(values: list[int]) -> tuple[int, ...]:
        ids, last = [], 7
        for value in values:
            last = last * 31 + value
            ids.append(last)
        return tuple(ids)

    index = PrefixIndex([1_000] * 12)
    plain: list[set[int]] = [set() for _ in range(12)]
    for instance, values in placements:
        index.placed(instance, chain(values))
        plain[instance] |= set(chain(values))
    want = []
    for have in plain:
        count = 0
        for block in chain(asked):
            if block not in have:
                break
            count += 1
        want.append(count)
    assert index.matched_blocks(chain(asked)).tolist() == want


def test_the_prefix_index_forgets_the_tail_first_and_all_of_a_restarted_one() -> None:
    index = PrefixIndex([3, 3])
    index.placed(0, (1, 2, 3))
    index.placed(0, (9,))
    assert index.matched_blocks((1, 2, 3)).tolist() == [2, 0]
    index.forget(0)
    assert index.matched_blocks((1,)).tolist() == [0, 0]
