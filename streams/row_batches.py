"""Rows out in the broker's own batches, and the keys that a predecessor left on a partition."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from minds.rows import tombstone_headers
from schemas.codec import headers_for
from schemas.operations import CLAIM_KEY
from schemas.topics import Topic
from streams.record_batches import fetch_batches
from streams.record_scan import header_section
from streams.record_writer import RecordWriter, piece
from transport.clock import now_ms
from transport.consumers import stop_consumer

MOST_UNDER_WAY = 24
"""Batches that the broker has not acknowledged yet: a few publications of two topics' four partitions."""
BATCH_BYTES = 256 * 1024


@dataclass(slots=True)
class _Rows:
    """Rows of one partition in order: many that take numbers, or single ones that are complete."""

    keys: list[bytes] = field(default_factory=list)
    templates: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    numbers: Any = None

    def add(self, key: bytes, template: bytes, headers: bytes) -> None:
        """One more."""
        self.keys.append(key)
        self.templates.append(template)
        self.headers.append(headers)


class RowBatches:
    """Collects rows by topic and partition; ``send`` writes them. About 1 us a row instead of 8."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._open: dict[tuple[str, int], list[_Rows]] = {}
        self._headers: dict[str, bytes] = {}
        self._writer = RecordWriter(BATCH_BYTES)
        self._under_way: deque[Any] = deque()

    @property
    def waiting(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._open)

    def put(self, topic: Topic, partition: int, key: str, value: bytes) -> None:
        """Add a row: the topic's model as JSON."""
        self._single(topic, partition).add(key.encode(), piece(value), self._headers_of(topic))

    def put_all(
        self, topic: Topic, partition: int, keys: list[bytes], templates: list[bytes], numbers: Any
    ) -> None:
        """Add many: templates of streams.record_writer, and what they take."""
        headers = [self._headers_of(topic)] * len(keys)
        self._open.setdefault((topic.name, partition), []).append(_Rows(keys, templates, headers, numbers))

    def remove(self, topic: Topic, partition: int, key: str, epoch: int, version: int) -> None:
        """Add a tombstone."""
        headers = header_section(tombstone_headers(epoch, version))
        self._single(topic, partition).add(key.encode(), b"", headers)

    def drop(self) -> None:
        """Forget what waits: it is not to be sent any more."""
        self._open = {}

    def _single(self, topic: Topic, partition: int) -> _Rows:
        held = self._open.setdefault((topic.name, partition), [])
        if not held or held[-1].numbers is not None:
            held.append(_Rows())
        return held[-1]

    def _headers_of(self, topic: Topic) -> bytes:
        headers = self._headers.get(topic.name)
        if headers is None:
            headers = self._headers[topic.name] = header_section(headers_for(topic.model))
        return headers

    async def send(self) -> Counter[str]:
        """Hand all to the producer; returns how many rows that were by topic, tombstones left out.

        Does not wait until the broker has them, unless too many are under way: a batch follows the other on
        the same connection, so their order holds. Raises KafkaError for any that failed since the last call.
        """
        opened, self._open = self._open, {}
        rows, now = Counter[str](), now_ms()
        for (topic, partition), held in opened.items():
            for each in held:
                self._writer.add(each.keys, each.templates, each.headers, each.numbers)
                rows[topic] += sum(map(bool, each.templates))
            for batch in self._writer.batches(now):
                self._under_way.append(await self._producer.send_batch(batch, topic, partition=partition))
        await self.settled(MOST_UNDER_WAY)
        return rows

    async def settled(self, most: int = 0) -> None:
        """Wait until at most so many batches are under way. Raises KafkaError for any that failed."""
        try:
            while self._under_way and (len(self._under_way) > most or self._under_way[0].done()):
                await self._under_way[0]
                self._under_way.popleft()
        except BaseException:
            self._under_way.clear()
            raise


async def keys_before(bootstrap: str, topic: Topic, partition: int, claim: int) -> set[str]:
    """The keys of a partition that have a row, read from its start up to the claim at this offset."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=4 * 1024 * 1024
    )
    tp = TopicPartition(topic.name, partition)
    found: set[str] = set()
    await consumer.start()
    try:
        consumer.assign([tp])
        await consumer.seek_to_beginning(tp)
        while await consumer.position(tp) < claim:
            for batch in await fetch_batches(consumer, 0.2):
                for record in batch.records:
                    key = (record.key or b"").decode("utf-8", "replace")
                    if key == CLAIM_KEY or record.offset >= claim:
                        continue
                    if record.value is None:
                        found.discard(key)
                    else:
                        found.add(key)
        return found
    finally:
        await stop_consumer(consumer)
