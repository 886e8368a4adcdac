"""The benchmark's own hand on Kafka: topics, a fast writer, and a reader of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.streams.arms import Arm, Row
from bench.streams.events import KEYS, PARTITIONS, instance_of, pool_of
from schemas.codec import headers_for, to_json
from schemas.endpoints import EndpointRow
from schemas.topics import ENDPOINTS, TOPICS
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.partitioning import partition_of

BROKER_STAMPED = {"message.timestamp.type": "LogAppendTime"}


async def make_topics(bootstrap: str, arms: Iterable[Arm]) -> None:
    """Our topics, each arm's source and sink; rows are stamped by the broker, so that arms compare."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    there = set(await admin.list_topics())
    known = {topic.name: topic.config() for topic in TOPICS}
    names = {name for arm in arms for name in (arm.source, arm.sink)}
    wanted = [
        NewTopic(name, PARTITIONS, 1, topic_configs=known.get(name, {}) | BROKER_STAMPED)
        for name in sorted(names - there)
    ]
    if wanted:
        await admin.create_topics(wanted)
    await admin.close()
    await ensure_topics(bootstrap)


async def register(producer: AIOKafkaProducer, keys: Iterable[int] = range(KEYS)) -> None:
    """A registry row for every key: without one an instance has no row of its own."""
    now = now_ms()
    for key in keys:
        row = EndpointRow(
            as_of_ms=now,
            valid_for_ms=600_000.0,
            epoch=now,
            version=1,
            instance=instance_of(key),
            boot="b0",
            boot_started_at_ms=now - 600_000,
            engine="vllm",
            url="http://127.0.0.1:1",
            region="eu",
            pools=[pool_of(key)],
        )
        await producer.send(
            ENDPOINTS.name,
            to_json(row),
            key=row.instance.encode(),
            partition=partition_of(pool_of(key), ENDPOINTS.partitions),
            headers=headers_for(row),
        )
    await producer.flush()


class Writer:
    """Appends ``(partition, value)`` records to a topic in the broker's own batches."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        header: tuple[str, bytes],
        on_append: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """``on_append`` is told of each batch its partition, its records and the broker's time of it (ms)."""
        self._producer = producer
        self._topic = topic
        self._headers = [header]
        self._on_append = on_append

    async def write(self, records: Iterable[tuple[int, bytes]]) -> int:
        """Write all; returns how many records."""
        open_batches: dict[int, Any] = {}
        sent: list[tuple[int, int, asyncio.Future[Any]]] = []
        count = 0
        for partition, value in records:
            batch = open_batches.get(partition)
            while batch is None or self._append(batch, value) is None:
                if batch is not None:
                    sent.append(await self._send(partition, batch))
                batch = open_batches[partition] = self._producer.create_batch()
            count += 1
        sent += [await self._send(partition, batch) for partition, batch in open_batches.items()]
        for partition, held, acknowledged in sent:
            metadata = await acknowledged
            if self._on_append is not None:
                self._on_append(partition, held, metadata.timestamp)
        return count

    async def _send(self, partition: int, batch: Any) -> tuple[int, int, asyncio.Future[Any]]:
        held = batch.record_count()
        return partition, held, await self._producer.send_batch(batch, self._topic, partition=partition)

    def _append(self, batch: Any, value: bytes) -> Any:
        return batch.append(key=b"k", value=value, timestamp=None, headers=self._headers)


class Rows:
    """Follows an arm's rows from now on: the newest of each key, and (if asked) each one's broker time."""

    def __init__(self, bootstrap: str, arm: Arm, on_row: Callable[[Row, int], None] | None = None) -> None:
        self._arm = arm
        self._bootstrap = bootstrap
        self._on_row = on_row
        self.last: dict[str, Row] = {}
        self.count = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def events(self) -> int:
        """Events that the newest rows hold together."""
        return sum(row[1] for row in self.last.values())

    async def start(self) -> None:
        """Begin to follow."""
        self._consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, fetch_max_wait_ms=100)
        await self._consumer.start()
        tps = [TopicPartition(self._arm.sink, number) for number in range(PARTITIONS)]
        self._consumer.assign(tps)
        await self._consumer.seek_to_end(*tps)
        for tp in tps:
            await self._consumer.position(tp)
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.stop()

    async def _follow(self) -> None:
        while True:
            for records in (await self._consumer.getmany(timeout_ms=100, max_records=2_000)).values():
                for record in records:
                    row = self._arm.row(record.key, record.value)
                    if row is not None:
                        self.count += 1
                        self.last[row[0]] = row
                        if self._on_row is not None:
                            self._on_row(row, record.timestamp)
