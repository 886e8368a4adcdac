"""Windows of what engines measure: blind to order and repetition, clean per boot, unknown where not told."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.engine_latency import (
    GRAINS_MS,
    SLOTS,
    Latencies,
    RankTold,
    Told,
    add_told,
    engine_windows,
    forget_old,
    join_told,
    pack,
    percentiles_of,
    told_of,
    unpack,
)
from schemas.telemetry import LatencyTotals, Telemetry

T0 = 1_796_000_000_000
BOUNDS = [10.0, 100.0, 1_000.0]
BOOT = (T0 - 60_000, "b0")


def scrape(
    at_ms: int, *, boot: int = 0, rank: int = 0, bounds: list[float] = BOUNDS, **counts: list[int]
) -> Telemetry:
    return Telemetry(
        instance="i-1",
        boot=f"b{boot}",
        boot_started_at_ms=T0 - 60_000 + boot,
        engine="vllm",
        rank=rank,
        region="eu",
        pools=["m@v1"],
        at_ms=at_ms,
        reachable=True,
        latencies=[
            LatencyTotals(name=name, bounds_ms=bounds, counts=each, sum_ms=0.0)  # type: ignore[arg-type]
            for name, each in counts.items()
        ],
    )


def told(*events: Telemetry) -> Told:
    made: Told = {}
    for event in events:
        join_told(made, told_of(event))
    return made


def kept(*events: Telemetry, mark_ms: int | None = None) -> Latencies:
    made: Latencies = {}
    for event in events:
        add_told(made, told_of(event))
        if mark_ms is not None:
            forget_old(made, mark_ms)
    return made


def windows(made: Latencies, now_ms: int, opened: list[Told] | None = None, boot: Any = BOOT) -> list[Any]:
    return engine_windows(made, opened or [], boot, now_ms)


def test_a_window_is_what_two_totals_differ_in() -> None:
    made = kept(
        scrape(T0 - 290_000, ttft=[0, 0, 0, 0]),
        scrape(T0 - 55_000, ttft=[10, 0, 0, 0]),
        scrape(T0 - 5_000, ttft=[10, 20, 0, 0]),
    )
    ten, minute, five = windows(made, T0)
    assert (ten.span_ms, minute.span_ms, five.span_ms) == (10_000.0, 60_000.0, 300_000.0)
    assert ten.ttft_ms == percentiles_of(BOUNDS, [0, 20, 0, 0])
    assert minute.ttft_ms == percentiles_of(BOUNDS, [10, 20, 0, 0])
    assert five.ttft_ms is None  # nothing from before its beginning
    assert (ten.queue_ms, ten.tpot_ms, ten.itl_ms) == (None, None, None)


def test_an_engine_that_was_idle_for_long_goes_on_counting() -> None:
    late = T0 + 3_600_000
    made = kept(scrape(T0, queue=[5, 0, 0, 0]), scrape(late, queue=[5, 4, 0, 0]), mark_ms=late)
    for window in windows(made, late):
        assert 10.0 < window.queue_ms.p50 <= 100.0


def test_nothing_measured_is_no_percentile_and_nothing_told_no_window() -> None:
    made = kept(scrape(T0 - 40_000, ttft=[0, 0, 0, 0]), scrape(T0 - 30_000, ttft=[3, 0, 0, 0]))
    ten, minute, _ = windows(made, T0)
    assert ten.ttft_ms is None
    assert minute.ttft_ms is None  # its beginning is not covered
    assert windows(made, T0, boot=(T0, "another")) == []
    assert windows({}, T0) == []
    assert told_of(scrape(T0)) == {}


def test_a_new_boot_starts_clean_and_an_old_one_changes_nothing() -> None:
    made = kept(
        scrape(T0 - 20_000, ttft=[90, 0, 0, 0]),
        scrape(T0 - 12_000, boot=1, ttft=[0, 0, 0, 0]),
        scrape(T0 - 1_000, boot=1, ttft=[0, 0, 1, 0]),
        scrape(T0 - 500, ttft=[99, 0, 0, 0]),
    )
    assert windows(made, T0) == []
    (ten, *_) = windows(made, T0, boot=(T0 - 59_999, "b1"))
    assert 100.0 < ten.ttft_ms.p50 <= 1_000.0


def test_a_count_that_fell_is_a_reset() -> None:
    made = kept(
        scrape(T0 - 11_000, ttft=[50, 0, 0, 0]),
        scrape(T0 - 7_000, ttft=[60, 0, 0, 0]),
        scrape(T0 - 4_000, ttft=[0, 5, 0, 0]),
        scrape(T0 - 1_000, ttft=[0, 9, 1, 0]),
    )
    # 10 in the first bucket before it, 9 and 1 since.
    expected = percentiles_of(BOUNDS, [10, 9, 1, 0])
    assert windows(made, T0)[0].ttft_ms == expected


def test_ranks_are_added_and_unknown_where_their_bounds_differ_or_one_has_no_beginning() -> None:
    one = [scrape(T0 - 11_000, ttft=[0, 0, 0, 0]), scrape(T0 - 1_000, ttft=[4, 0, 0, 0])]
    two = [
        scrape(T0 - 11_000, rank=1, ttft=[7, 0, 0, 0]),
        scrape(T0 - 1_000, rank=1, ttft=[7, 0, 4, 0]),
    ]
    assert windows(kept(*one, *two), T0)[0].ttft_ms == percentiles_of(BOUNDS, [4, 0, 4, 0])
    assert windows(kept(*one, two[1]), T0)[0].ttft_ms is None
    other = [
        scrape(T0 - 11_000, rank=1, bounds=[1.0, 2.0], ttft=[0, 0, 0]),
        scrape(T0 - 1_000, rank=1, bounds=[1.0, 2.0], ttft=[1, 0, 0]),
    ]
    assert windows(kept(*one, *other), T0)[0].ttft_ms is None


def test_bounds_that_change_within_a_boot_are_unknown_until_the_window_has_passed() -> None:
    events = [
        scrape(T0 - 12_000, ttft=[1, 0, 0, 0]),
        scrape(T0 - 5_000, bounds=[5.0], ttft=[1, 0]),
        scrape(T0 - 1_000, bounds=[5.0], ttft=[2, 0]),
    ]
    made = kept(*events)
    assert windows(made, T0)[0].ttft_ms is None
    assert windows(made, T0 + 5_500)[0].ttft_ms == percentiles_of([5.0], [1, 0])


def test_totals_that_do_not_fit_their_bounds_are_left_out() -> None:
    assert told_of(scrape(T0, ttft=[1, 2])) == {}
    assert list(told_of(scrape(T0, ttft=[1, 2], queue=[1, 2, 3, 4]))[0].points) == ["queue"]


def test_a_requests_mean_is_read_before_the_time_between_tokens() -> None:
    def both(at_ms: int, count: int, **more: list[int]) -> Telemetry:
        return scrape(at_ms, itl=[count, 0, 0, 0], **more)

    sglang = kept(both(T0 - 11_000, 0), both(T0 - 1_000, 5))
    assert windows(sglang, T0)[0].itl_ms is not None
    vllm = kept(both(T0 - 11_000, 0, tpot=[0, 0, 0, 0]), both(T0 - 1_000, 5, tpot=[1, 0, 0, 0]))
    assert (windows(vllm, T0)[0].itl_ms, windows(vllm, T0)[0].tpot_ms is not None) == (None, True)


def test_what_is_kept_is_bounded() -> None:
    events = [scrape(T0 + 1_000 * n, bounds=[1.0 + n // 50], ttft=[n, 0]) for n in range(2_000)]
    made: Latencies = {}
    for event in events:
        add_told(made, told_of(event))
        forget_old(made, event.at_ms)
    grains = made[0].grains["ttft"]
    assert all(len(grain) <= keep + 1 for grain, keep in zip(grains, SLOTS, strict=True))
    assert len(made[0].bounds) <= 360 // 50 + 2


@given(st.lists(st.integers(0, 2**53), min_size=1, max_size=50))
def test_packed_counts_come_back(counts: list[int]) -> None:
    assert list(unpack(pack(counts))) == counts


@given(
    st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20, unique=True).map(sorted),
    st.data(),
)
def test_percentiles_lie_in_the_bucket_of_their_rank(bounds: list[float], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 50), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    found = percentiles_of(bounds, counts)
    if not sum(counts):
        assert found is None
        return
    values = [found.p50, found.p90, found.p95, found.p99]
    assert values == sorted(values)
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    for share, value in zip((0.5, 0.9, 0.95, 0.99), values, strict=True):
        place = places[max(0, -int(-share * len(places) // 1) - 1)]
        low, high = ([0.0, *bounds][place], bounds[min(place, len(bounds) - 1)])
        assert min(low, high) - 1e-6 <= value <= high + 1e-6


events_drawn = st.lists(
    st.builds(
        lambda at, boot, rank, name, counts, bounds: scrape(
            T0 + at, boot=boot, rank=rank, bounds=bounds, **{name: counts[: len(bounds) + 1]}
        ),
        st.integers(0, 400_000),
        st.integers(0, 1),
        st.integers(0, 1),
        st.sampled_from(["ttft", "queue"]),
        st.lists(st.integers(0, 20), min_size=4, max_size=4),
        st.sampled_from([BOUNDS, [1.0, 2.0]]),
    ),
    max_size=25,
)


@given(events_drawn, st.integers(0, 2**20), st.integers(0, 420_000))
def test_order_repetition_and_where_an_interval_is_cut_do_not_matter(
    drawn: list[Telemetry], seed: int, after_ms: int
) -> None:
    now_ms = T0 + after_ms
    reference = kept(*sorted(drawn, key=lambda event: event.at_ms))
    forget_old(reference, T0 + 400_000)
    rng = random.Random(seed)
    again = drawn + drawn[: len(drawn) // 2]
    rng.shuffle(again)
    cut, last = sorted((rng.randint(0, len(again)), rng.randint(0, len(again))))
    closed: Latencies = {}
    for part in (again[:cut], again[cut:last]):
        delta = told(*part)
        wire = msgspec.json.decode(msgspec.json.encode(delta), type=dict[int, RankTold])
        assert wire == delta
        add_told(closed, wire)
        forget_old(closed, T0 + 400_000 if rng.random() < 0.5 else T0)
    opened = [told(*again[last:])]
    for boot in (BOOT, (T0 - 59_999, "b1")):
        if now_ms >= T0 + 400_000:
            newest = {rank: (held.boot_started_at_ms, held.boot) for rank, held in reference.items()}
            if set(newest.values()) == {boot}:
                assert windows(closed, now_ms, opened, boot) == windows(reference, now_ms, boot=boot)
    for part in opened:
        add_told(closed, part)
    forget_old(closed, T0 + 400_000)
    for rank, held in reference.items():
        assert (closed[rank].boot_started_at_ms, closed[rank].boot) == (held.boot_started_at_ms, held.boot)
        assert windows({rank: closed[rank]}, T0 + 400_000, boot=(held.boot_started_at_ms, held.boot)) == (
            windows({rank: held}, T0 + 400_000, boot=(held.boot_started_at_ms, held.boot))
        )


@pytest.mark.parametrize("place", range(3))
def test_a_slot_keeps_its_last_total(place: int) -> None:
    start = T0 // 60_000 * 60_000
    made = kept(*[scrape(start + 100 * n, ttft=[n, 0, 0, 0]) for n in range(100)])
    grain = made[0].grains["ttft"][place]
    for slot, point in grain.items():
        last_ms = min(start + 9_900, (slot + 1) * GRAINS_MS[place] - 100)
        assert point.at_ms == last_ms
