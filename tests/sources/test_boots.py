"""A boot per life of the process: never one too many for the same life, never one for two lives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.base import EARLIEST_MS
from sources.boots import UNSEEN, Boot, BootTracker, Evidence, Previous

NOW = 1_795_980_000_000
START = 1_795_970_000_000


def _told(start: int | None, tokens: float = 0.0, *, source: str = "p", token: str | None = None) -> Evidence:
    return Evidence(start, source if start is not None else None, token, {"tokens": tokens})


def test_the_name_derives_from_the_process_start_so_agents_agree() -> None:
    first, second = BootTracker(), BootTracker()
    assert first.observe(_told(START), NOW).boot == Boot(f"b{START:x}", START)
    assert second.observe(_told(START, 900), NOW + 60_000).boot == first.boot


def test_a_new_process_start_is_a_new_boot_even_where_counters_did_not_fall() -> None:
    tracker = BootTracker()
    assert tracker.boot == UNSEEN
    assert tracker.observe(_told(START, 5), NOW).new
    assert not tracker.observe(_told(START, 6), NOW + 250).new
    verdict = tracker.observe(_told(START + 1000, 7), NOW + 500)
    assert (verdict.new, verdict.fell) == (True, ())
    assert verdict.boot.started_at_ms == START + 1000


def test_a_fall_within_a_known_process_is_a_reset_not_a_boot() -> None:
    tracker = BootTracker()
    tracker.observe(_told(START, 5), NOW)
    verdict = tracker.observe(_told(START, 1), NOW + 250)
    assert (verdict.new, verdict.fell) == (False, ("tokens",))
    assert tracker.observe(_told(START, 2), NOW + 500).fell == ()


def test_without_a_process_start_the_agent_mints_and_a_fall_mints_again() -> None:
    tracker = BootTracker()
    first = tracker.observe(_told(None, 5), NOW).boot
    assert first.started_at_ms == NOW
    assert tracker.observe(_told(None, 5), NOW + 250).boot == first
    second = tracker.observe(_told(None, 4), NOW + 500)
    assert second.new
    assert second.boot.name != first.name
    assert second.boot.started_at_ms > first.started_at_ms


def test_a_clock_that_goes_back_does_not_order_boots_wrongly() -> None:
    tracker = BootTracker()
    first = tracker.observe(_told(None, 5), NOW).boot
    second = tracker.observe(_told(None, 0), NOW - 60_000).boot
    assert second.started_at_ms > first.started_at_ms


def test_a_changed_token_in_the_headers_is_a_new_boot() -> None:
    tracker = BootTracker()
    first = tracker.observe(_told(None, 5, token="1442"), NOW).boot
    assert tracker.observe(_told(None, 9, token="1442"), NOW + 250).boot == first
    assert tracker.observe(_told(None, 9), NOW + 500).boot == first, "a missing token is no change"
    assert tracker.observe(_told(None, 9, token="1466"), NOW + 750).new


def test_a_start_that_goes_missing_and_comes_back_is_the_same_boot() -> None:
    tracker = BootTracker()
    first = tracker.observe(_told(START, 5), NOW).boot
    assert tracker.observe(_told(None, 6), NOW + 250).boot == first
    assert tracker.observe(_told(START + 15_000, 7, source="created"), NOW + 500).boot == first
    assert tracker.observe(_told(START, 8), NOW + 750).boot == first
    assert tracker.observe(_told(START + 20_000, 9), NOW + 1000).new


def test_a_start_learnt_late_keeps_the_boot_that_was_minted() -> None:
    tracker = BootTracker()
    first = tracker.observe(_told(None, 5), NOW).boot
    assert tracker.observe(_told(START, 6), NOW + 250).boot == first
    assert tracker.observe(_told(START + 9000, 7), NOW + 500).boot == Boot(f"b{START + 9000:x}", START + 9000)


def test_unseen_is_older_than_any_boot() -> None:
    assert UNSEEN.started_at_ms == EARLIEST_MS


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.booleans()), max_size=30))
def test_boots_change_exactly_with_the_process(steps: list[tuple[bool, int, bool]]) -> None:
    """Random lives: restarts, work done, and scrapes that lack the start."""
    tracker, start, total = BootTracker(), START, 0
    tracker.observe(_told(start, 0), NOW)
    for number, (restart, work, hidden) in enumerate(steps):
        if restart and not hidden:
            start, total = start + 10_000, 0
        total += work
        verdict = tracker.observe(_told(None if hidden else start, total), NOW + 250 * number)
        assert verdict.boot == Boot(f"b{start:x}", start)
        assert verdict.new == (restart and not hidden)


def test_a_token_names_the_boot_so_that_a_new_agent_names_it_the_same() -> None:
    first, second = BootTracker(), BootTracker()
    boot = first.observe(_told(None, 5, token="123"), NOW).boot
    assert boot.name.startswith("t")
    assert second.observe(_told(None, 9, token="123"), NOW + 60_000).boot.name == boot.name
    third = BootTracker(Previous(boot, recent=False))
    assert third.observe(_told(None, 9, token="123"), NOW + 60_000).boot == boot, "and as old as it is"
    fourth = BootTracker(Previous(boot, recent=True))
    other = fourth.observe(_told(None, 9, token="456"), NOW + 60_000).boot
    assert other.name != boot.name
    assert other.started_at_ms > boot.started_at_ms


def test_without_any_token_only_a_recent_boot_goes_on() -> None:
    minted = BootTracker().observe(_told(None, 5), NOW).boot
    recent, old = BootTracker(Previous(minted, True)), BootTracker(Previous(minted, False))
    assert recent.observe(_told(None, 6), NOW + 9000).boot == minted
    assert recent.observe(_told(None, 2), NOW + 9250).boot != minted, "a fall is a new life all the same"
    later = old.observe(_told(None, 6), NOW - 9000).boot
    assert later.name != minted.name
    assert later.started_at_ms > minted.started_at_ms, "also where the clock went back"


def test_a_process_start_decides_whatever_an_earlier_life_wrote() -> None:
    before = Previous(Boot("a1", NOW - 99), True)
    assert BootTracker(before).observe(_told(START), NOW).boot == Boot(f"b{START:x}", START)
    assert BootTracker(Previous(UNSEEN, True)).observe(_told(None, 1), NOW).boot.name == f"a{NOW:x}"
