"""Topics, envelopes, rows and dead letters on a real broker."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.codec import Refused, decode_events
from schemas.network import LinkProbe
from schemas.operations import DeadLetter
from schemas.readings import Reading
from schemas.tables import RegionRow
from schemas.topics import DEAD, LINKS, REGIONS, TOPICS
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.dead_letters import DeadLetterWriter, TooManyDeadLetters
from transport.errors import BrokerUnavailable
from transport.partitioning import partition_of
from transport.producer import EventProducer, RowProducer, start_producer
from transport.table_reader import TableReader

pytestmark = pytest.mark.kafka


def probe() -> LinkProbe:
    fresh = Reading(value=1.5, quality="fresh", age_ms=0.0)
    return LinkProbe(
        from_region="a",
        to_region="b",
        at_ms=now_ms(),
        rtt_ms=fresh,
        loss_ratio=Reading(),
        bandwidth_mbit_per_s=Reading(),
    )


async def read_all(bootstrap: str, topic: str) -> list[object]:
    """Every record of a topic that is there now."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    await consumer.start()
    try:
        count = len(await consumer._client._wait_on_metadata(topic))
        partitions = [TopicPartition(topic, number) for number in range(count)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[object] = []
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=300)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


async def test_topics_are_made_from_the_registry_once(kafka) -> None:
    await asyncio.gather(ensure_topics(kafka.bootstrap), ensure_topics(kafka.bootstrap))
    assert await ensure_topics(kafka.bootstrap) == []
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap)
    await consumer.start()
    try:
        there = await consumer.topics()
        assert {topic.name for topic in TOPICS} <= set(there)
    finally:
        await consumer.stop()


async def test_envelopes_carry_their_identity_without_gaps(kafka) -> None:
    await ensure_topics(kafka.bootstrap)
    producer_id = f"probe-{uuid.uuid4().hex[:8]}"
    producer = await start_producer(kafka.bootstrap)
    events = EventProducer(producer, producer_id=producer_id, boot="b1")
    for _ in range(1200):
        events.emit(LINKS, probe())
    await asyncio.wait_for(events.emit_acked(LINKS, probe()), 10)
    for _ in range(3):
        events.emit(LINKS, probe())
    await events.close()
    await producer.stop()
    assert events.dropped == 0
    mine = [
        decode_events(LINKS, record.headers, record.value)  # type: ignore[attr-defined]
        for record in await read_all(kafka.bootstrap, LINKS.name)
        if record.key == producer_id.encode()  # type: ignore[attr-defined]
    ]
    assert [envelope.seq for envelope in mine] == list(range(len(mine)))
    assert {(envelope.producer, envelope.boot) for envelope in mine} == {(producer_id, "b1")}
    assert sum(len(envelope.events) for envelope in mine) == 1204


async def test_a_new_reader_is_complete_and_then_follows(kafka) -> None:
    await ensure_topics(kafka.bootstrap)
    pool = f"{uuid.uuid4().hex[:8]}@v1"
    producer = await start_producer(kafka.bootstrap)
    rows = RowProducer(producer)
    partition = partition_of(pool, REGIONS.partitions)
    epoch = await rows.claim(REGIONS, partition, "test")

    def row(region: str, version: int) -> RegionRow:
        return RegionRow(
            as_of_ms=now_ms(),
            valid_for_ms=5000.0,
            epoch=epoch,
            version=version,
            region=region,
            pool=pool,
            ready_endpoints=version,
            known_endpoints=9,
        )

    for region in ("eu", "us"):
        await rows.put(REGIONS, row(region, 1), partition_key=pool)
    await rows.flush()
    changes: list[str] = []
    reader = TableReader(
        kafka.bootstrap, [REGIONS], on_change=lambda topic, change: changes.append(change.key)
    )
    await reader.start()
    try:
        await reader.wait_caught_up(15)
        assert reader.view(REGIONS).row(f"eu|{pool}").ready_endpoints == 1
        await rows.put(REGIONS, row("eu", 2), partition_key=pool)
        gone = await rows.remove(REGIONS, f"us|{pool}", partition_key=pool, epoch=epoch, version=3)
        await gone
        async with asyncio.timeout(10):
            while reader.view(REGIONS).row(f"us|{pool}") is not None:
                await asyncio.sleep(0.02)
        assert reader.view(REGIONS).row(f"eu|{pool}").ready_endpoints == 2
        assert reader.view(REGIONS).claim_of(partition) == epoch
        assert changes.count(f"eu|{pool}") == 2
    finally:
        await reader.stop()
        await producer.stop()


async def test_dead_letters_keep_origin_and_digest_and_stop_a_flood(kafka) -> None:
    await ensure_topics(kafka.bootstrap)
    producer = await start_producer(kafka.bootstrap)
    component = f"test-{uuid.uuid4().hex[:8]}"
    letters = DeadLetterWriter(producer, component, run_limit=3)
    refused = Refused("unparseable", "fleet.links: not JSON.")
    try:
        for offset in range(2):
            await letters.write(LINKS.name, 1, offset, (("schema", b"link/1"),), b"a secret", refused)
        letters.accepted()
        await letters.write(LINKS.name, 1, 3, (), b"x", refused)
        await letters.write(LINKS.name, 1, 4, (), b"x", refused)
        with pytest.raises(TooManyDeadLetters, match=r"3 records in a row"):
            await letters.write(LINKS.name, 1, 5, (), b"x", refused)
    finally:
        await producer.stop()
    mine = [
        letter
        for record in await read_all(kafka.bootstrap, DEAD.name)
        if (letter := DeadLetter.model_validate_json(record.value)).component == component  # type: ignore[attr-defined]
    ]
    assert [letter.origin_offset for letter in mine] == [0, 1, 3, 4, 5]
    assert mine[0].schema_header == "link/1"
    assert mine[0].size_bytes == 8
    assert "secret" not in mine[0].model_dump_json()


async def test_an_unreachable_broker_is_one_sentence() -> None:
    with pytest.raises(BrokerUnavailable, match=r"No Kafka broker answered at 127\.0\.0\.1:1 within 1 s"):
        await start_producer("127.0.0.1:1", timeout_s=1.0)
    with pytest.raises(BrokerUnavailable):
        await ensure_topics("127.0.0.1:1", timeout_s=1.0)
