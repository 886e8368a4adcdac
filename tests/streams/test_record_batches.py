"""Batches by way of the fetcher's internals are what ``getmany`` gives, record by record."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewTopic

from schemas.topics import INSTANCES
from streams.record_batches import fetch_batches
from streams.row_batches import keys_before
from tests.streams.fleet import Log
from transport.admin import connect_admin
from transport.producer import RowProducer

Seen = list[tuple[int, int, bytes | None, bytes | None, tuple]]


async def make_topic(log: Log, name: str) -> None:
    admin = await connect_admin(log.bootstrap)
    stamped = {"message.timestamp.type": "LogAppendTime"}
    await admin.create_topics([NewTopic(name, 2, 1, topic_configs=stamped if name.endswith("b") else {})])
    await admin.close()
    for number in range(300):
        headers = [("schema", b"outcome/1")] if number % 3 else []
        value = None if number % 50 == 7 else b"x" * number
        await log.producer.send(name, value, key=b"k%d" % number, partition=number % 2, headers=headers)
    await log.producer.flush()


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["a", "b"])
async def test_the_same_records_as_getmany(log: Log, unique: str, kind: str) -> None:
    name = f"batches-{unique}-{kind}"
    await make_topic(log, name)
    tps = [TopicPartition(name, number) for number in range(2)]
    start = 17

    async def read(by_batches: bool) -> dict[TopicPartition, Seen]:
        consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap, max_partition_fetch_bytes=20_000)
        await consumer.start()
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, start)
        found: dict[TopicPartition, Seen] = {tp: [] for tp in tps}

        def take(tp: TopicPartition, records: Any) -> None:
            for r in records:
                found[tp].append((r.offset, r.timestamp, r.key, r.value, tuple(r.headers)))

        while sum(map(len, found.values())) < 300 - 2 * start:
            if by_batches:
                for batch in await fetch_batches(consumer, 0.5):
                    stamps = [record.timestamp for record in batch.records]
                    assert (batch.first_ms, batch.last_ms) == (min(stamps), max(stamps))
                    take(batch.tp, batch.records)
            else:
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    take(tp, records)
        assert [await consumer.position(tp) for tp in tps] == [150, 150]
        assert await fetch_batches(consumer, 0.05) == []
        await consumer.stop()
        return found

    assert await read(True) == await read(False)


@pytest.mark.kafka
async def test_the_keys_that_a_predecessor_left(log: Log, unique: str) -> None:
    for number in range(5):
        await log.producer.send(INSTANCES.name, b"{}", key=f"{unique}-{number}".encode(), partition=1)
    await log.producer.send(INSTANCES.name, None, key=f"{unique}-0".encode(), partition=1)
    await log.producer.flush()
    claim = await RowProducer(log.producer).claim(INSTANCES, 1, f"w-{unique}")
    await log.producer.send_and_wait(INSTANCES.name, b"{}", key=f"{unique}-late".encode(), partition=1)
    found = await keys_before(log.bootstrap, INSTANCES, 1, claim)
    assert {key for key in found if unique in key} == {f"{unique}-{number}" for number in range(1, 5)}
    for number in range(5):
        await log.producer.send(INSTANCES.name, None, key=f"{unique}-{number}".encode(), partition=1)
    await log.producer.send_and_wait(INSTANCES.name, None, key=f"{unique}-late".encode(), partition=1)
