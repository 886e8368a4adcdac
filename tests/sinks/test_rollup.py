"""The rollup of telemetry: by the view at insert, by healing after a cut, and never 0 for unknown."""

from __future__ import annotations

import asyncio

from schemas.topics import TELEMETRY
from sinks.clickhouse.engine import ClickHouseStore
from sinks.clickhouse.tables import BY_TOPIC
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.records import Batch
from sinks.writer import Writer
from tests.sinks.conftest import Put
from tests.sinks.events import envelope, telemetry
from transport.clock import now_ms

MINUTE = now_ms() // 60_000 * 60_000 - 120_000


def _minutes(store: ClickHouseStore) -> list[tuple[object, ...]]:
    return store.rows(
        "SELECT instance, samples, reachable_samples, requests_running_avg, requests_running_max "
        "FROM telemetry_minutes ORDER BY minute, instance"
    )


async def test_unknown_stays_null(put: Put, store: ClickHouseStore) -> None:
    events = [
        telemetry("a", MINUTE, 4.0),
        telemetry("a", MINUTE + 1000, 8.0),
        telemetry("a", MINUTE + 2000, None),
        telemetry("b", MINUTE, None),
    ]
    await put(TELEMETRY, [envelope(TELEMETRY, events, offset=0)])
    assert _minutes(store) == [("a", 3, 2, 6.0, 8.0), ("b", 1, 0, None, None)]


async def test_healing_adds_what_was_cut_off_and_only_that(put: Put, store: ClickHouseStore) -> None:
    await put(TELEMETRY, [envelope(TELEMETRY, [telemetry("a", MINUTE, 4.0)], offset=0)])
    store.command("DETACH TABLE telemetry_1m_mv")
    try:
        later = [telemetry("a", MINUTE + 1000, 8.0), telemetry("b", MINUTE + 60_000, 1.0)]
        other = envelope(TELEMETRY, [telemetry("c", MINUTE, 2.0)], offset=0, partition=1)
        await put(TELEMETRY, [envelope(TELEMETRY, later, offset=1), other])
        assert _minutes(store) == [("a", 1, 1, 4.0, 4.0)]
    finally:
        store.command("ATTACH TABLE telemetry_1m_mv")
    expected = [("a", 2, 2, 6.0, 8.0), ("c", 1, 1, 2.0, 2.0), ("b", 1, 1, 1.0, 1.0)]
    for _ in range(2):
        await put(TELEMETRY, [])  # recovers, as a start does
        assert _minutes(store) == expected


async def test_an_insert_whose_rollup_failed_is_completed_not_repeated(store: ClickHouseStore) -> None:
    health = Health()
    writer = Writer(store, health, SinkMetrics(), backoff_s=0.01)
    await writer.recover()
    events = [telemetry("a", MINUTE, 4.0), telemetry("a", MINUTE + 1000, 6.0)]
    batch = Batch()
    batch.add(BY_TOPIC[TELEMETRY.name], [envelope(TELEMETRY, events, offset=0)])
    store.command("RENAME TABLE telemetry_1m TO telemetry_1m_away")
    try:
        writing = asyncio.create_task(writer.write("telemetry_raw", batch.rows["telemetry_raw"]))
        while not health.failing:
            await asyncio.sleep(0.01)
        assert not writing.done()
    finally:
        store.command("RENAME TABLE telemetry_1m_away TO telemetry_1m")
    await writing
    assert health.failing_since_ms is None
    assert store.rows("SELECT count() FROM telemetry_raw") == [(2,)]
    assert _minutes(store) == [("a", 2, 2, 5.0, 6.0)]
