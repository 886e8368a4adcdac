"""Dead letters: listing them, and reading an original record again once its reader or writer is mended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from schemas.codec import Refused, decode_events, digest
from schemas.topics import BY_NAME, DEAD
from transport.errors import BrokerUnavailable
from transport.log_reader import partitions_of, start_log_reader
from transport.producer import start_producer

REPLAY_HEADER = "replayed-from"
_WAIT_S = 15.0


class ReplayRefused(RuntimeError):  # noqa: N818 - reads as what happened
    """The record can't be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and how often its origin was put aside (a crash may repeat one)."""

    origin_topic: str
    origin_partition: int
    origin_offset: int
    at_ms: int
    component: str
    kind: str
    reason: str
    schema_header: str | None
    size_bytes: int
    sha256: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Replayed:
    """Where a replayed record went."""

    topic: str
    partition: int
    offset: int


async def list_letters(bootstrap: str) -> list[Letter]:
    """The dead letters that the log holds, one an origin and component, oldest first.

    Raises BrokerUnavailable.
    """
    letters: dict[tuple[str, int, int, str], Letter] = {}
    consumer = await start_log_reader(bootstrap)
    try:
        partitions = await partitions_of(consumer, DEAD.name)
        if not partitions:
            return []
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    _note(letters, record)
    except KafkaError as error:
        raise BrokerUnavailable(bootstrap, _WAIT_S, type(error).__name__) from error
    finally:
        await consumer.stop()
    return sorted(letters.values(), key=lambda letter: letter.at_ms)


async def replay(bootstrap: str, topic: str, partition: int, offset: int) -> Replayed:
    """Produce the original record again to its own topic and partition, marked with where it came from.

    Raises ReplayRefused where no dead letter names this record, where the log has dropped it, or where it is
    not the record that was put aside; BrokerUnavailable.
    """
    if topic not in BY_NAME:
        raise ReplayRefused(f"There is no topic {topic!r} in the registry.")
    named = [
        letter
        for letter in await list_letters(bootstrap)
        if (letter.origin_topic, letter.origin_partition, letter.origin_offset) == (topic, partition, offset)
    ]
    if not named:
        raise ReplayRefused(f"No dead letter names {topic} partition {partition} offset {offset}.")
    record = await _original(bootstrap, TopicPartition(topic, partition), offset)
    if digest(record.value) != named[0].sha256:
        raise ReplayRefused(
            f"The record at {topic} partition {partition} offset {offset} is not the one that was put aside: "
            "the topic was made anew since."
        )
    producer = await start_producer(bootstrap)
    try:
        headers = [(name, value) for name, value in record.headers if name != REPLAY_HEADER]
        origin = f"{topic}/{partition}/{offset}".encode()
        sent = await producer.send_and_wait(
            topic,
            record.value,
            key=record.key,
            partition=partition,
            headers=[*headers, (REPLAY_HEADER, origin)],
        )
    finally:
        await producer.stop()
    return Replayed(topic, int(sent.partition), int(sent.offset))


async def _original(bootstrap: str, tp: TopicPartition, offset: int) -> Any:
    gone = (
        f"The record at {tp.topic} partition {tp.partition} offset {offset} is gone: the log has dropped it "
        "(retention or compaction), so it can't be replayed."
    )
    consumer = await start_log_reader(bootstrap)
    try:
        if tp not in await partitions_of(consumer, tp.topic):
            raise ReplayRefused(f"{tp.topic} has no partition {tp.partition} at {bootstrap}.")
        consumer.assign([tp])
        begin = (await consumer.beginning_offsets([tp]))[tp]
        end = (await consumer.end_offsets([tp]))[tp]
        if not begin <= offset < end:
            raise ReplayRefused(gone)
        consumer.seek(tp, offset)
        record = await asyncio.wait_for(consumer.getone(tp), _WAIT_S)
    except (OffsetOutOfRangeError, TimeoutError):
        raise ReplayRefused(gone) from None
    except KafkaError as error:
        raise BrokerUnavailable(bootstrap, _WAIT_S, type(error).__name__) from error
    finally:
        await consumer.stop()
    if record.offset != offset:
        raise ReplayRefused(gone)
    return record


def _note(letters: dict[tuple[str, int, int, str], Letter], record: Any) -> None:
    try:
        decoded = decode_events(DEAD, tuple(record.headers), record.value)
    except Refused:
        return  # the sink puts a bad dead letter aside itself, as a letter about this topic
    (event,) = decoded.events
    letter = Letter(**msgspec.structs.asdict(event))
    key = (letter.origin_topic, letter.origin_partition, letter.origin_offset, letter.component)
    seen = letters.get(key)
    letters[key] = letter if seen is None else replace(seen, times=seen.times + 1)
