"""Batches written by compiled code are what aiokafka's builder writes, and what brokers and readers take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.topics import MAX_RECORD_BYTES
from streams.record_batches import fetch_batches
from streams.record_scan import header_section
from streams.record_writer import AGE, NUMBER, RecordWriter, WrittenBatch, piece, warm_up
from tests.streams.fleet import Log
from tests.streams.test_record_batches import make_topic

STAMP_MS = 1_796_000_000_000
Record = tuple[bytes, bytes | None, list[tuple[str, bytes]]]
keys = st.binary(min_size=1, max_size=200)
values = st.one_of(st.none(), st.binary(max_size=500))
headers = st.lists(st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=80)), max_size=3)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Once for all, or the first examples take seconds."""
    warm_up()


def theirs(records: list[Record]) -> bytes:
    builder = BatchBuilder(1_000_000, 0)
    for key, value, named in records:
        assert builder.append(timestamp=STAMP_MS, key=key, value=value, headers=named) is not None
    builder._set_producer_state(7, 3, 11)
    return bytes(builder._build())


def ours(records: list[Record], most_bytes: int = 1_000_000) -> list[WrittenBatch]:
    writer = RecordWriter(most_bytes)
    for start in range(0, len(records), 3):  # in several goes
        some = records[start : start + 3]
        templates = [b"" if value is None else piece(value) for _, value, _ in some]
        writer.add([key for key, _, _ in some], templates, [header_section(named) for _, _, named in some])
    return writer.batches(STAMP_MS)


@given(st.lists(st.tuples(keys, values, headers), min_size=1, max_size=150))
@settings(deadline=2_000)
def test_the_bytes_are_those_of_aiokafkas_builder(records: list[Record]) -> None:
    [batch] = ours(records)
    assert (batch.record_count(), batch.closed()) == (len(records), True)
    batch._set_producer_state(7, 3, 11)
    assert bytes(batch._build()) == theirs(records)
    assert batch.size() == len(theirs(records))


numbers = st.integers(min_value=-(2**62), max_value=2**62)


@given(st.lists(st.tuples(numbers, numbers, st.binary(max_size=40)), min_size=1, max_size=40))
@settings(deadline=2_000)
def test_numbers_and_ages_are_put_where_the_template_has_them(rows: list[tuple[int, int, bytes]]) -> None:
    writer = RecordWriter(1_000_000)
    figures = np.array([[STAMP_MS, a, b] for a, b, _ in rows], np.int64)
    templates = [
        piece(b"", NUMBER, 2) + piece(text, AGE, STAMP_MS - 15) + piece(b"|", NUMBER, 1) + piece(b".")
        for _, _, text in rows
    ]
    writer.add([b"k"] * len(rows), templates, [header_section([])] * len(rows), figures)
    [batch] = writer.batches(STAMP_MS)
    found = [record.value for record in DefaultRecordBatch(bytes(batch._build()))]
    assert found == [b"%d%b15|%d." % (b, text, a) for a, b, text in rows]


def test_a_batch_ends_before_it_is_too_long_and_nothing_is_lost() -> None:
    records: list[Record] = [(b"%d" % n, b"x" * (n * 37 % 900), []) for n in range(200)]
    batches = ours(records, most_bytes=4_000)
    assert len(batches) > 10
    assert max(batch.size() for batch in batches) <= 4_000
    found: list[Any] = []
    for batch in batches:
        read = list(DefaultRecordBatch(bytes(batch._build())))
        assert [record.offset for record in read] == list(range(len(read)))
        found += [(record.key, record.value, []) for record in read]
    assert found == records


def test_a_long_record_goes_alone_and_one_that_no_broker_takes_is_refused() -> None:
    long, short = b"x" * 100_000, b"y"
    batches = ours([(b"a", short, []), (b"b", long, []), (b"c", short, [])], most_bytes=1_000)
    assert [batch.record_count() for batch in batches] == [1, 1, 1]
    writer = RecordWriter(1_000)
    with pytest.raises(ValueError, match=r"record b'd' is larger"):
        writer.add([b"d"], [piece(b"x" * MAX_RECORD_BYTES)], [header_section([])])


@pytest.mark.kafka
async def test_a_broker_takes_them_one_after_the_other(log: Log, unique: str) -> None:
    name = f"written-{unique}"
    await make_topic(log, name)
    tp = TopicPartition(name, 0)
    records: list[Record] = [
        (b"%d" % n, None if n % 7 == 3 else b"v%d" % n, [("h", b"1")]) for n in range(90)
    ]
    acks = [
        await log.producer.send_batch(batch, name, partition=0)
        for at in range(0, 90, 9)
        for batch in ours(records[at : at + 9])
    ]
    offsets = [(await ack).offset for ack in acks]
    assert offsets == list(range(150, 240, 9))
    consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap)
    await consumer.start()
    try:
        consumer.assign([tp])
        consumer.seek(tp, 150)
        found: list[Record] = []
        while len(found) < 90:
            for batch in await fetch_batches(consumer, 1.0):
                found += [(r.key, r.value, list(r.headers)) for r in batch.records]
        assert found == records
    finally:
        await consumer.stop()
