"""Kafka into ClickHouse: reads all partitions from where the tables stand, in batches of about a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from sinks.clickhouse.tables import BY_TOPIC, TABLES, Table
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.records import BadRecord, Batch
from sinks.writer import Writer
from transport.clock import monotonic_ms
from transport.dead_letters import DeadLetterWriter, TooManyDeadLetters
from transport.errors import BrokerUnavailable

log = structlog.get_logger(__name__)

BATCH_ROWS = 10_000
BATCH_MS = 1000.0
FETCH_RECORDS = 500
NEW_PARTITIONS_EVERY_MS = 30_000.0


class LogMismatch(RuntimeError):  # noqa: N818 - reads as what happened
    """The log and the store can't belong together."""


class SinkConsumer:
    """The single writer. Kafka's committed offsets are for lag monitoring only; nothing starts from them.

    The order for each batch is dead letters, insert, commit. Dead letters come first because the stored
    position passes over a bad record as soon as a later row is stored: after a crash in between it is put
    aside again (the same origin twice), never silently skipped.
    """

    def __init__(
        self,
        bootstrap: str,
        writer: Writer,
        producer: AIOKafkaProducer,
        health: Health,
        metrics: SinkMetrics,
        *,
        group: str = "tokenfleet-sink",
        batch_ms: float = BATCH_MS,
        tables: Sequence[Table] = TABLES,
    ) -> None:
        self._writer = writer
        self._health = health
        self._metrics = metrics
        self._batch_ms = batch_ms
        self._tables = tables
        self._bootstrap = bootstrap
        self._dead = DeadLetterWriter(producer, "sink")
        self._stopping = False
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            request_timeout_ms=30_000,
            metadata_max_age_ms=30_000,
        )
        self._assigned: set[TopicPartition] = set()
        self._read_upto: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        """Find the position in ClickHouse and go there.

        Raises BrokerUnavailable, StoreError, or LogMismatch where the log ends before what is stored.
        """
        try:
            await self._consumer.start()
        except (KafkaError, OSError) as error:
            await self._consumer.stop()
            raise BrokerUnavailable(self._bootstrap, 30.0, type(error).__name__) from error
        try:
            await self._writer.recover()
            await self._assign()
        except BaseException:
            await self._consumer.stop()
            raise
        self._health.following = True

    async def run(self) -> None:
        """Read and store until ``stop``; returns after the last batch. Sets health where it can't go on."""
        try:
            checked_ms = monotonic_ms()
            while not self._stopping:
                batch = await self._read_batch()
                await self._store(batch)
                if monotonic_ms() - checked_ms > NEW_PARTITIONS_EVERY_MS:
                    checked_ms = monotonic_ms()
                    await self._assign()
        except (TooManyDeadLetters, LogMismatch) as error:
            self._health.stopped = str(error)
            log.error("sink_stopped", reason=str(error))
        except Exception as error:
            self._health.stopped = f"The sink's consumer failed: {type(error).__name__}: {error}"
            log.exception("sink_failed")
        finally:
            self._health.following = False
            await self._consumer.stop()

    def stop(self) -> None:
        """Ask ``run`` to return once what it has read is stored."""
        self._stopping = True

    async def _assign(self) -> None:
        known = set()
        for table in self._tables:
            numbers = await self._consumer._client._wait_on_metadata(table.topic.name) or set()
            known |= {TopicPartition(table.topic.name, number) for number in numbers}
        fresh = known - self._assigned
        if not fresh:
            return
        places = {tp: await self._consumer.position(tp) for tp in self._assigned}
        ordered = sorted(fresh)
        begins = await self._consumer.beginning_offsets(ordered)
        ends = await self._consumer.end_offsets(ordered)
        for tp in ordered:
            places[tp] = self._place(tp, begins[tp], ends[tp])
        self._consumer.assign(sorted(known))
        for tp, offset in places.items():
            self._consumer.seek(tp, offset)
        self._assigned = known
        log.info("following", partitions=len(known), behind=sum(ends[tp] - places[tp] for tp in ordered))

    def _place(self, tp: TopicPartition, begin: int, end: int) -> int:
        """Where to read from: the stored offset itself, since not all events of its record need be stored."""
        position = self._writer.stored[BY_TOPIC[tp.topic].name].get(tp.partition)
        if position is None:
            return begin
        stored = position[0]
        if stored >= end:
            raise LogMismatch(
                f"ClickHouse holds {tp.topic} partition {tp.partition} up to offset {stored}, but the log at "
                f"{self._bootstrap} ends at {end}: it is another cluster, or the topic was made anew. "
                "Use another data folder for it."
            )
        if stored + 1 < begin and not BY_TOPIC[tp.topic].topic.compacted:
            lost = begin - stored - 1
            self._metrics.expired.labels(tp.topic).inc(lost)
            log.error("records_expired", topic=tp.topic, partition=tp.partition, records=lost)
        return max(stored, begin)

    async def _read_batch(self) -> Batch:
        batch, until_ms = Batch(), monotonic_ms() + self._batch_ms
        while not self._stopping and batch.row_count < BATCH_ROWS:
            left_ms = until_ms - monotonic_ms()
            if left_ms <= 0:
                break
            fetched = await self._consumer.getmany(
                timeout_ms=int(min(left_ms, 200)) + 1, max_records=FETCH_RECORDS
            )
            for tp, records in fetched.items():
                batch.add(BY_TOPIC[tp.topic], records)
        return batch

    async def _store(self, batch: Batch) -> None:
        if not batch.next_offsets:
            return
        if batch.good_records:
            self._dead.accepted(batch.good_records)
        for bad in batch.bad:
            await self._put_aside(bad)
        for table, rows in batch.rows.items():
            await self._writer.write(table, rows)
        offsets = {TopicPartition(*place): offset for place, offset in batch.next_offsets.items()}
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:
            log.warning("offsets_not_committed", error=type(error).__name__)  # only lag monitoring misses it
        self._show_lag(offsets)

    async def _put_aside(self, bad: BadRecord) -> None:
        while True:
            try:
                await self._dead.write(
                    bad.topic, bad.partition, bad.offset, bad.headers, bad.value, bad.refused
                )
                break
            except KafkaError as error:
                self._health.fails(f"dead letters: {type(error).__name__}", monotonic_ms())
                self._metrics.retries.labels("dead_letter").inc()
                await asyncio.sleep(1.0)
        self._health.works()
        self._metrics.dead_letters.labels(bad.topic, bad.refused.kind).inc()

    def _show_lag(self, offsets: dict[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._read_upto[tp] = offset
        for table in self._tables:
            name = table.topic.name
            lag = sum(
                max(0, (self._consumer.highwater(tp) or 0) - offset)
                for tp, offset in self._read_upto.items()
                if tp.topic == name
            )
            self._metrics.lag.labels(name).set(lag)
