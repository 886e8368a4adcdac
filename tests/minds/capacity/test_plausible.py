"""Impossible scrapes are not used, their instance is in quarantine, and its last good values age out."""

from __future__ import annotations

from typing import Any

import pytest

from minds.capacity.folds import Total
from minds.capacity.live import Live
from minds.capacity.plausible import QUARANTINE_MS, impossible_rate
from minds.capacity.registers import Ranks, join_ranks, register_of
from minds.capacity.rows import Stamp, instance_row
from minds.merge import Merged
from schemas.endpoints import EndpointRow
from schemas.readings import EngineCounters, EngineGauges, Reading
from schemas.telemetry import Telemetry

T0 = 1_796_000_000_000


def fresh(value: float) -> Reading:
    return Reading(value=value, quality="fresh", age_ms=0.0)


def scrape(at_ms: int, total: float = 1.0, **gauges: float) -> Telemetry:
    return Telemetry(
        instance="i", boot="b", boot_started_at_ms=T0 - 60_000, engine="vllm", region="eu", pools=["m@v1"],
        at_ms=at_ms, reachable=True, gauges=EngineGauges(**{name: fresh(v) for name, v in gauges.items()}),
        counters=EngineCounters(generation_tokens_total=fresh(total)),
    )  # fmt: skip


def seen(*scrapes: Telemetry) -> Live:
    ranks: Ranks = {}
    for each in scrapes:
        join_ranks(ranks, {0: register_of(each)})
    return Live(Merged(closed=Total(mark_ms=T0, ranks=ranks)))


def row(live: Live, now_ms: int) -> Any:
    endpoint = EndpointRow(
        as_of_ms=now_ms, valid_for_ms=5_000.0, epoch=1, version=1, instance="i", boot="b",
        boot_started_at_ms=T0 - 60_000, engine="vllm", url="http://127.0.0.1:1", region="eu", pools=["m@v1"],
    )  # fmt: skip
    return instance_row(endpoint, live, Stamp(now_ms, 1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kv_usage_ratio": 1.01},
        {"kv_usage_ratio": -0.1},
        {"requests_waiting": -1.0},
        {"requests_running": 1e7},
    ],
)
def test_an_impossible_scrape_leaves_what_was_known_to_age(wrong: dict[str, float]) -> None:
    live = seen(scrape(T0, requests_running=3.0), scrape(T0 + 1_000, **wrong))
    early = row(live, T0 + 1_500)
    assert (early.quarantined, early.state, early.gauges.requests_running.value) == (True, "ready", 3.0)
    assert row(live, T0 + 4_000).gauges.requests_running.quality == "stale"
    late = row(live, T0 + 9_000)
    assert (late.state, late.gauges.requests_running.value) == ("unknown", None)
    assert not row(live, T0 + 1_000 + int(QUARANTINE_MS)).quarantined


def test_a_jump_of_a_counter_gives_no_rate() -> None:
    live = seen(scrape(T0, 0.0), scrape(T0 + 1_000, 5e9))
    found = row(live, T0 + 1_000)
    assert found.decode_tokens_per_s.value is None
    said = live.quarantined(T0 + 1_000)
    assert said is not None
    assert "generation_tokens_total" in said[1]
    assert impossible_rate([("generation_tokens_total", 900_000.0)]) is None


def test_what_an_engine_can_say_is_no_alert() -> None:
    live = seen(scrape(T0, 10.0, kv_usage_ratio=1.0, requests_waiting=0.0, kv_capacity_tokens=1000.0))
    found = row(live, T0)
    assert not found.quarantined
    assert (found.kv_used_tokens.value, found.kv_free_tokens.value) == (1000.0, 0.0)
