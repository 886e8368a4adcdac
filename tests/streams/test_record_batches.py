"""Batches by way of the fetcher's internals are what ``getmany`` gives, record by record."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder

from schemas.topics import INSTANCES
from streams.record_batches import KeptRecords, RecordBatch, fetch_batches
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
                    assert batch.raw is not None
                    assert batch.scan is not None
                    assert len(batch) == len(batch.records) == len(batch.scan)
                    assert batch.next_offset == batch.records[-1].offset + 1
                    take(batch.tp, batch.records)
            else:
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    take(tp, records)
        assert [await consumer.position(tp) for tp in tps] == [150, 150]
        assert await fetch_batches(consumer, 0.05) == []
        await consumer.stop()
        return found

    assert await read(True) == await read(False)


def built(offsets: list[int], magic: int = 2, compression: int = 0, control: bool = False) -> bytes:
    """A batch as a broker has it: the offset of the first record is put in, checksum and all."""
    if magic < 2:
        legacy = LegacyRecordBatchBuilder(magic, compression, 1 << 20)
        for offset in offsets:
            legacy.append(offset, timestamp=offset, key=None, value=b"v%d" % offset)
        return bytes(legacy.build())
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, 0, 1 << 20)
    for offset in offsets:
        builder.append(offset - offsets[0], timestamp=offset, key=None, value=b"v%d" % offset, headers=[])
    data = bytearray(builder.build())
    data[:8] = offsets[0].to_bytes(8, "big")
    data[22] |= 0x20 if control else 0
    return bytes(data)


def test_kept_records_give_the_bytes_of_each_batch() -> None:
    parts = [built([0, 1]), built([2, 3], compression=1), built([4, 7]), built([8])]
    kept = KeptRecords(b"".join(parts) + parts[0][:30])
    seen = []
    while kept.has_next():
        offsets = [record.offset for record in kept.next_batch()]
        seen.append((bytes(kept.raw), offsets))
    assert [raw for raw, _ in seen] == parts
    assert [offsets for _, offsets in seen] == [[0, 1], [2, 3], [4, 7], [8]]
    assert kept.next_batch() is None


@pytest.mark.parametrize(
    ("raw", "read_as_it_is"),
    [
        (built([5, 6, 9]), True),
        (built([5, 6, 9], compression=1), False),
        (built([5, 6, 9], control=True), False),
    ],
)
@pytest.mark.parametrize(("wanted", "offsets"), [(0, [5, 6, 9]), (5, [5, 6, 9]), (7, [9]), (10, [])])
def test_a_batch_begins_with_the_wanted_offset(
    raw: bytes, read_as_it_is: bool, wanted: int, offsets: list[int]
) -> None:
    batch = RecordBatch(TopicPartition("t", 0), DefaultRecordBatch(raw), wanted, raw)
    assert (batch.raw is not None) == read_as_it_is
    assert (batch.base_offset, batch.next_offset, len(batch)) == (5, 10, len(offsets))
    if offsets:
        assert (batch.first_ms, batch.last_ms) == (offsets[0], offsets[-1])
    assert [record.offset for record in batch.records] == offsets
    assert batch.records is batch.records


def test_older_records_are_read_by_the_client() -> None:
    raw = built([9], magic=1)
    batch = RecordBatch(TopicPartition("t", 0), LegacyRecordBatch(raw, 1), 3, raw)
    assert (batch.raw, batch.scan, batch.base_offset, batch.next_offset, len(batch)) == (None, None, 3, 10, 1)
    assert (batch.first_ms, batch.last_ms, batch.records[0].value) == (9, 9, b"v9")


def test_a_batch_that_lies_about_itself_raises_when_its_records_are_asked_for() -> None:
    raw = built([0, 1])
    cut = raw[:-1]
    batch = RecordBatch(TopicPartition("t", 0), DefaultRecordBatch(cut), 0, cut)
    assert batch.scan is None
    with pytest.raises(CorruptRecordException):
        list(batch.records)


def test_the_fetcher_keeps_the_bytes() -> None:
    assert fetcher.MemoryRecords is KeptRecords


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
