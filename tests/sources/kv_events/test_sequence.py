"""Gaps, duplicates, restarts and looks: which batches are believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sources.kv_events.sequence import Forget, Position, Verdict
from sources.kv_events.wire import Batch, Cleared, KvChange


def batch(seq: int, ts_s: float | None = None, *events: KvChange) -> Batch:
    return Batch(seq, 1000.0 + seq if ts_s is None else ts_s, 0, events)


def after(*seqs: int) -> Position:
    position = Position()
    for seq in seqs:
        position.live(batch(seq))
    return position


def test_batches_in_order_are_applied_and_known_ones_are_not_again() -> None:
    position = after(0, 1)
    assert position.live(batch(2)).steps == (batch(2),)
    assert position.live(batch(1)) == Verdict()
    assert (position.last, position.whole, position.began_ts_s) == (2, True, 1000.0)
    assert (position.counts.applied, position.counts.duplicates) == (3, 1)


def test_a_gap_is_filled_from_a_replay_that_begins_with_the_last_known_batch() -> None:
    position = after(0, 1)
    assert position.live(batch(4)) == Verdict(ask_from=1)
    verdict = position.replayed([batch(1), batch(2), batch(3), batch(4), batch(5)], batch(4))
    assert verdict == Verdict((batch(2), batch(3), batch(4), batch(5)))
    assert position.live(batch(5)) == Verdict()
    assert (position.counts.gaps_filled, position.counts.gaps_lost, position.whole) == (1, 0, True)


def test_a_gap_that_no_replay_fills_empties_what_was_known() -> None:
    position = after(0, 1)
    position.live(batch(4))
    assert position.replayed(None, batch(4)) == Verdict((Forget("gap"), batch(4)))
    assert (position.counts.gaps_lost, position.counts.batches_lost, position.whole) == (1, 2, False)
    cleared = batch(5, None, Cleared())
    assert position.live(cleared).steps == (cleared,)
    assert position.whole, "after a clear all is known again"


def test_a_replay_buffer_that_does_not_reach_back_is_a_loss() -> None:
    position = after(0, 1)
    position.live(batch(7))
    steps = position.replayed([batch(5), batch(6)], batch(7)).steps
    assert steps == (Forget("gap"), batch(5), batch(6), batch(7))
    assert position.counts.batches_lost == 3
    position = after(0, 1)
    position.live(batch(4))
    assert position.replayed([batch(2), batch(3)], batch(4)).steps[0] == Forget("gap"), (
        "without the batch where we were, these could be of another life"
    )


def test_holes_within_a_replay_are_losses() -> None:
    position = after(0)
    position.live(batch(5))
    steps = position.replayed([batch(0), batch(1), batch(3)], batch(5)).steps
    assert steps == (batch(1), Forget("gap"), batch(3), Forget("gap"), batch(5))
    assert (position.counts.gaps_filled, position.counts.gaps_lost) == (0, 2)


@pytest.mark.parametrize("ts_s", [5000.0, 900.0])
def test_a_restart_shows_in_number_and_stamp_even_if_the_clock_went_back(ts_s: float) -> None:
    position = after(0, 1, 2)
    assert position.live(batch(0, ts_s)) == Verdict((Forget("restart"), batch(0, ts_s)))
    assert (position.last, position.counts.restarts, position.whole) == (0, 1, True)
    position = after(0, 1, 2)
    assert position.live(batch(1, ts_s)) == Verdict((Forget("restart"),), ask_from=0)
    verdict = position.replayed([batch(0, ts_s), batch(1, ts_s)], batch(1, ts_s))
    assert verdict.steps == (batch(0, ts_s), batch(1, ts_s))
    assert position.whole


def test_a_restart_that_looks_like_a_gap_shows_in_the_replay() -> None:
    position = after(0, 1)
    assert position.live(batch(4, 9004)).ask_from == 1
    other = [batch(seq, 9000.0 + seq) for seq in range(5)]
    assert position.replayed(other[1:], other[4]) == Verdict((Forget("restart"),), ask_from=0)
    assert position.replayed(other, other[4]).steps == tuple(other)
    assert (position.counts.restarts, position.counts.gaps_lost, position.whole) == (1, 0, True)


def test_a_look_finds_lost_ends_and_silent_restarts() -> None:
    position = after(0, 1)
    assert position.replayed([batch(1)]) == Verdict()
    assert position.replayed([batch(1), batch(2)]).steps == (batch(2),)
    assert position.replayed(None) == Verdict()
    assert position.replayed([]) == Verdict((Forget("restart"),), ask_from=0)
    assert position.replayed([]) == Verdict()


def test_events_that_nobody_can_read_leave_doubt() -> None:
    position = after(0)
    position.live(replace(batch(1), unread=1))
    assert not position.whole
