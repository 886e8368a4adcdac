"""Telemetry registers: reading twice changes nothing, boots start clean, rates are never negative."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.registers import Ranks, forget_old_samples, gauges_of, join_ranks, rates_of, register_of
from schemas.readings import EngineCounters, EngineGauges, Reading
from schemas.telemetry import Telemetry

T0 = 1_796_000_000_000


def fresh(value: float) -> Reading:
    return Reading(value=value, quality="fresh", age_ms=0.0)


def scrape(
    at_ms: int, *, boot: int = 0, rank: int = 0, running: float | None = 1.0, **counters: Any
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
        reachable=running is not None,
        gauges=EngineGauges(requests_running=Reading() if running is None else fresh(running)),
        counters=EngineCounters(**{name: fresh(value) for name, value in counters.items()}),
    )


def joined(events: list[Telemetry]) -> Ranks:
    ranks: Ranks = {}
    for event in events:
        join_ranks(ranks, {event.rank: register_of(event)})
    return ranks


events = st.builds(
    lambda at, boot, rank, running, total: scrape(
        T0 + at, boot=boot, rank=rank, running=running, generation_tokens_total=float(total)
    ),
    st.integers(0, 8_000),
    st.integers(0, 2),
    st.integers(0, 1),
    st.one_of(st.none(), st.integers(0, 9).map(float)),
    st.integers(0, 10_000),
)


@given(st.lists(events, max_size=20), st.integers(0, 2**20))
def test_joining_is_blind_to_order_and_repetition(drawn: list[Telemetry], seed: int) -> None:
    reference = joined(drawn)
    again = drawn + drawn[: len(drawn) // 2]
    random.Random(seed).shuffle(again)
    left, right = joined(again[: len(again) // 2]), joined(again[len(again) // 2 :])
    join_ranks(left, right)
    assert left == reference


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=10))
def test_rates_are_never_negative(totals: list[int]) -> None:
    samples = [
        scrape(T0 + 1_000 * second, generation_tokens_total=float(total))
        for second, total in enumerate(totals)
    ]
    rate, age_ms = rates_of(joined(samples).values(), T0 + 1_000 * len(totals))["generation_tokens_total"]
    assert rate >= 0
    assert age_ms == 1_000


def test_a_reset_counts_what_came_since() -> None:
    samples = [
        scrape(T0 + 1_000 * second, generation_tokens_total=total)
        for second, total in enumerate([100.0, 200.0, 50.0, 150.0])
    ]
    rate, _ = rates_of(joined(samples).values(), T0 + 3_000)["generation_tokens_total"]
    assert rate == (100 + 50 + 100) / 3.0


def test_a_new_boot_starts_clean() -> None:
    ranks = joined(
        [
            scrape(T0, generation_tokens_total=1_000.0),
            scrape(T0 + 1_000, generation_tokens_total=2_000.0),
            scrape(T0 + 2_000, boot=1, running=None),
        ]
    )
    assert rates_of(ranks.values(), T0 + 2_000) == {}
    assert gauges_of(ranks.values(), T0 + 2_000).requests_running.quality == "unknown"
    join_ranks(ranks, joined([scrape(T0 + 3_000, running=7.0)]))
    assert ranks[0].boot == "b1"


def test_a_failed_scrape_ages_a_reading_and_does_not_erase_it() -> None:
    ranks = joined([scrape(T0, running=4.0), scrape(T0 + 1_000, running=None)])
    for now, quality in ((T0 + 1_000, "fresh"), (T0 + 4_000, "stale"), (T0 + 7_000, "unknown")):
        reading = gauges_of(ranks.values(), now).requests_running
        assert reading.quality == quality
        assert reading.value == (None if quality == "unknown" else 4.0)


def test_ranks_add_up_and_a_silent_one_makes_the_sum_unknown() -> None:
    ranks = joined([scrape(T0, running=4.0), scrape(T0, rank=1, running=2.0)])
    assert gauges_of(ranks.values(), T0).requests_running.value == 6.0
    ranks = joined([scrape(T0, running=4.0), scrape(T0, rank=1, running=None)])
    assert gauges_of(ranks.values(), T0).requests_running.value is None


def test_old_samples_go() -> None:
    ranks = joined([scrape(T0 + 1_000 * s, generation_tokens_total=float(s)) for s in range(40)])
    forget_old_samples(ranks, T0 + 39_000)
    assert len(ranks[0].samples) == 15
