"""Rows out in the broker's own batches, and the keys that a predecessor left on a partition."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from minds.rows import tombstone_headers
from schemas.codec import headers_for
from schemas.operations import CLAIM_KEY
from schemas.topics import Topic
from streams.record_batches import fetch_batches
from transport.consumers import stop_consumer

MOST_UNDER_WAY = 24
"""Batches that the broker has not acknowledged yet: a few publications of two topics' four partitions."""


class RowBatches:
    """Collects rows by topic and partition; ``send`` writes them. About 1 us a row instead of 8."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._open: dict[tuple[str, int], Any] = {}
        self._full: list[tuple[str, int, Any]] = []
        self._headers: dict[str, list[tuple[str, bytes]]] = {}
        self._rows: Counter[str] = Counter()
        self._under_way: deque[Any] = deque()

    @property
    def waiting(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._open)

    def put(self, topic: Topic, partition: int, key: str, value: bytes) -> None:
        """Add a row: the topic's model as JSON."""
        self._append(topic, partition, key.encode(), value, self._headers_of(topic))
        self._rows[topic.name] += 1

    def put_all(self, topic: Topic, partition: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add many: keys and values."""
        headers = self._headers_of(topic)
        at, batch, added = (topic.name, partition), None, 0
        for key, value in rows:
            if batch is None or batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                self._append(topic, partition, key, value, headers)
                batch = self._open[at]
            added += 1
        self._rows[topic.name] += added

    def remove(self, topic: Topic, partition: int, key: str, epoch: int, version: int) -> None:
        """Add a tombstone."""
        self._append(topic, partition, key.encode(), None, tombstone_headers(epoch, version))

    def _headers_of(self, topic: Topic) -> list[tuple[str, bytes]]:
        headers = self._headers.get(topic.name)
        if headers is None:
            headers = self._headers[topic.name] = headers_for(topic.model)
        return headers

    def _append(self, topic: Topic, partition: int, key: bytes, value: bytes | None, headers: Any) -> None:
        at = (topic.name, partition)
        batch = self._open.get(at)
        if batch is None:
            batch = self._open[at] = self._producer.create_batch()
        if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
            self._full.append((topic.name, partition, batch))
            batch = self._open[at] = self._producer.create_batch()
            if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                raise ValueError(f"The row {key!r} of {topic.name} is larger than a record may be.")

    async def send(self) -> Counter[str]:
        """Hand all to the producer; returns how many rows that were by topic.

        Does not wait until the broker has them, unless too many are under way: a batch follows the other on
        the same connection, so their order holds. Raises KafkaError for any that failed since the last call.
        """
        rows, self._rows = self._rows, Counter()
        ready = [
            *self._full,
            *((topic, partition, batch) for (topic, partition), batch in self._open.items()),
        ]
        self._open, self._full = {}, []
        for topic, at, batch in ready:
            self._under_way.append(await self._producer.send_batch(batch, topic, partition=at))
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
