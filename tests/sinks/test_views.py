"""What analysts read: one row a decision, one row an intent."""

from __future__ import annotations

from schemas.topics import OUTCOMES
from sinks.clickhouse.engine import ClickHouseStore
from tests.sinks.conftest import Put
from tests.sinks.events import envelope, outcome
from transport.clock import now_ms

T0 = now_ms() - 60_000


async def test_a_real_outcome_beats_an_inferred_lost_one(put: Put, store: ClickHouseStore) -> None:
    lost = outcome("d1", "i1", cause="lost", inferred=True, within_slo=False, at_ms=T0)
    real = outcome("d1", "i1", at_ms=T0 + 5000)
    await put(OUTCOMES, [envelope(OUTCOMES, [lost], offset=0), envelope(OUTCOMES, [real], offset=1, seq=1)])
    await put(OUTCOMES, [envelope(OUTCOMES, [real], offset=0, partition=1, seq=1)])
    assert store.rows("SELECT decision_id, cause, inferred FROM outcomes") == [("d1", "ok", False)]
    assert store.rows("SELECT count() FROM outcomes_raw") == [(3,)]


async def test_an_intent_is_ok_if_any_attempt_was_and_counts_from_its_first_start(
    put: Put, store: ClickHouseStore
) -> None:
    failed = outcome(
        "d1",
        "i1",
        cause="failed",
        within_slo=False,
        at_ms=T0,
        intent_started_at_ms=T0 - 500,
        ttft_ms=None,
        output_tokens=None,
        wasted_tokens=7,
        region="us",
        entry_region="edge-1",
    )
    # The second attempt came to another router, which did not know of the first.
    ok = outcome(
        "d2",
        "i1",
        attempt=2,
        at_ms=T0 + 2000,
        intent_started_at_ms=T0 + 100,
        ttft_ms=300.0,
        entry_region="edge-2",
    )
    await put(OUTCOMES, [envelope(OUTCOMES, [failed, ok], offset=0)])
    (row,) = store.rows(
        "SELECT cause, attempts, region, entry_region, ttft_ms, output_tokens, wasted_tokens, within_slo, "
        "toUnixTimestamp64Milli(started_at) FROM intents"
    )
    assert row == ("ok", 2, "eu", "edge-1", 900.0, 50, 7, True, T0 - 500)


async def test_a_later_first_start_can_cost_the_level(put: Put, store: ClickHouseStore) -> None:
    shed = outcome(
        "d1", "i1", cause="shed", within_slo=False, at_ms=T0, ttft_ms=None, region=None, instance=None
    )
    ok = outcome("d2", "i1", attempt=2, at_ms=T0 + 9000, intent_started_at_ms=T0 + 8000, ttft_ms=300.0)
    await put(OUTCOMES, [envelope(OUTCOMES, [shed, ok], offset=0)])
    assert store.rows("SELECT cause, ttft_ms, within_slo FROM intents") == [("ok", 9300.0, False)]


async def test_a_refused_intent_has_no_region_and_unmeasured_stays_null(
    put: Put, store: ClickHouseStore
) -> None:
    first = outcome("d1", "i1", cause="timeout", within_slo=False, at_ms=T0, ttft_ms=None, tpot_ms=None)
    last = outcome(
        "d2",
        "i1",
        attempt=2,
        cause="shed",
        rule="no_lease",
        within_slo=False,
        at_ms=T0 + 1000,
        region=None,
        instance=None,
        ttft_ms=None,
        tpot_ms=None,
        output_tokens=None,
        wasted_tokens=None,
    )
    await put(OUTCOMES, [envelope(OUTCOMES, [first, last], offset=0)])
    (row,) = store.rows("SELECT cause, rule, region, ttft_ms, output_tokens, within_slo FROM intents")
    assert row == ("shed", "no_lease", None, None, None, False)
    (row,) = store.rows("SELECT offered, ok, good, shed, output_tokens, good_tokens FROM goodput_1m")
    assert row == (1, 0, 0, 1, None, None)


async def test_one_intent_id_of_two_tenants_is_two_intents(put: Put, store: ClickHouseStore) -> None:
    both = [outcome("d1", "i1", tenant="acme"), outcome("d2", "i1", tenant="other")]
    await put(OUTCOMES, [envelope(OUTCOMES, both, offset=0)])
    assert store.rows("SELECT tenant FROM intents ORDER BY tenant") == [("acme",), ("other",)]
