"""What keeps a sink from starting or going on is a sentence, and shows in health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from aiokafka import TopicPartition

from sinks.clickhouse.engine import ClickHouseStore, StoreError, open_embedded, open_server
from sinks.consumer import LogMismatch, SinkConsumer
from sinks.endpoint import Endpoint
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.writer import Writer
from transport.dead_letters import TooManyDeadLetters


def _consumer(store: ClickHouseStore, health: Health) -> SinkConsumer:
    metrics = SinkMetrics()
    writer = Writer(store, health, metrics)
    producer: Any = None  # dead letters are not written here
    return SinkConsumer("127.0.0.1:9", writer, producer, health, metrics)


async def test_where_to_read_from(store: ClickHouseStore) -> None:
    consumer = _consumer(store, Health())
    tp = TopicPartition("fleet.outcomes", 0)
    consumer._writer.stored["outcomes_raw"] = {}
    assert consumer._place(tp, begin=3, end=9) == 3
    consumer._writer.stored["outcomes_raw"] = {0: (5, 2)}
    assert consumer._place(tp, begin=3, end=9) == 5, "not all events of that record need be stored"
    assert consumer._place(tp, begin=6, end=9) == 6
    expired = consumer._metrics.expired.labels("fleet.outcomes")._value
    assert expired.get() == 0
    assert consumer._place(tp, begin=8, end=9) == 8
    assert expired.get() == 2
    with pytest.raises(LogMismatch, match="another cluster"):
        consumer._place(tp, begin=0, end=5)
    await consumer._consumer.stop()


async def test_too_many_dead_letters_stop_it_and_turn_health_red(
    store: ClickHouseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = Health(following=True)
    consumer = _consumer(store, health)

    async def refuse() -> None:
        raise TooManyDeadLetters("sink: 1000 records in a row could not be used.")

    monkeypatch.setattr(consumer, "_read_batch", refuse)
    await consumer.run()
    server = TestServer(Endpoint(health, SinkMetrics(), None).app())
    await server.start_server()
    async with aiohttp.ClientSession() as session:
        async with session.get(server.make_url("/healthz")) as answer:
            assert answer.status == 503
            assert "1000 records in a row" in (await answer.json())["reason"]
        async with session.get(server.make_url("/readyz")) as answer:
            assert answer.status == 503
        async with session.post(server.make_url("/"), data="SELECT 1") as answer:
            assert answer.status == 403
            assert "send queries there" in await answer.text()
    await server.close()


def test_a_folder_in_use_or_unusable(store: ClickHouseStore, sink_data: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in use by another process"):
        open_embedded(sink_data)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be used"):
        open_embedded(tmp_path / "file")


def test_a_server_that_is_not_there_never_shows_the_password() -> None:
    with pytest.raises(StoreError) as caught:
        open_server("http://me:hunter2@127.0.0.1:9")
    assert "127.0.0.1:9" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(StoreError, match="looks like http"):
        open_server("clickhouse.example:8123")
