"""Faust as stage two uses it: raw topics, tables written in batches, acknowledgements after the changelog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import faust
from aiokafka.admin import NewTopic
from faust.tables.table import Table

from schemas.topics import DAY_MS, MAX_RECORD_BYTES, ROLLUPS, Topic, topic
from streams import faust_transport
from streams.health import Health
from streams.options import StreamsOptions

YIELD_EVERY = 20
MOST_BUFFERED = 100_000
"""Changelog writes that may wait: Faust stops reading beyond so many, and its default is 100."""

STORED_BATCH_BYTES = 1024 * 1024
"""Of the changelog: a state may take 20 kB, and at Faust's 16 kB each would be a request of its own."""


class BatchedTable(Table):  # type: ignore[misc]
    """A table that is written from outside its stream, with the changelog partition said by the caller.

    Faust takes the partition of the event at hand, which a batch does not have; a wrong one would recover on
    another worker.
    """

    def write(self, key: bytes, value: bytes | None, partition: int) -> Any:
        """Set or (None) delete a key; the returned future is done when the changelog has it."""
        if value is None:
            self.data.pop(key, None)
        else:
            self.data[key] = value
        return self.send_changelog(partition, key, value, value_serializer="raw")


Write = tuple[BatchedTable, bytes, bytes | None, int]
"""Table, key, value (None deletes), partition."""


def build_app(options: StreamsOptions) -> faust.App:
    """The Faust app of one worker; it has no web server, and its topics are made beforehand."""
    options.data_dir.mkdir(parents=True, exist_ok=True)
    app = faust.App(
        options.app_id,
        broker=f"kafka://{options.bootstrap}",
        store="memory://",
        datadir=str(options.data_dir / "faust"),
        Table=BatchedTable,
        web_enabled=False,
        topic_partitions=ROLLUPS.partitions,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,
        consumer_group_instance_id=f"{options.worker_id}-faust",
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=options.session_ms / 1000.0,
        broker_heartbeat_interval=options.heartbeat_interval_ms / 1000.0,
        broker_commit_interval=0.5,
        broker_request_timeout=20.0,
        producer_linger=0.02,
        producer_max_batch_size=STORED_BATCH_BYTES,
        producer_max_request_size=MAX_RECORD_BYTES,
        recovery_delay=0.0,
        table_cleanup_interval=3600.0,
    )
    faust_transport.use(app)
    app.producer.buffer.max_messages = MOST_BUFFERED
    return app


def raw_topic(app: faust.App, name: str) -> Any:
    """A topic of the registry as bytes; decoding is ours, so that a bad record can't stop Faust."""
    return app.topic(
        name,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",  # the type alone would still be read as JSON
        value_serializer="raw",
        allow_empty=True,
        partitions=topic(name).partitions,
    )


def stateful_agent(app: faust.App, topic: str, process: Callable[[Any], Any], health: Health) -> None:
    """Run ``process`` over a topic, one event after the other. One that ends by an exception is a failure:
    Faust would restart it and skip what it had in hand.
    """

    async def guarded(stream: Any) -> None:
        try:
            await process(stream)
        except Exception as error:
            health.fail(f"agent_{topic}", f"The agent of {topic} crashed: {error!r}."[:500])
            raise

    app.agent(raw_topic(app, topic), name=topic, concurrency=1)(guarded)


def raw_table(app: faust.App, name: str, source: Topic) -> BatchedTable:
    """A table of bytes to bytes, in memory and recovered from its changelog; partitioned as ``source``."""
    table: BatchedTable = app.Table(name, key_type=bytes, value_type=bytes, partitions=source.partitions)
    return table


def changelog_topics(
    app_id: str, tables: Iterable[str], source: Topic, replication: int = 1
) -> list[NewTopic]:
    """The changelogs to create beforehand, partitioned as the topic that the tables are written from.

    A partition count that differs would crash-loop the agents.
    """
    config = {
        "cleanup.policy": "compact",
        "max.message.bytes": str(MAX_RECORD_BYTES),
        "segment.ms": str(DAY_MS // 24),
        "min.cleanable.dirty.ratio": "0.2",
        "delete.retention.ms": str(DAY_MS),
    }
    return [
        NewTopic(f"{app_id}-{table}-changelog", source.partitions, replication, topic_configs=config)
        for table in tables
    ]


class Ownership:
    """Which partitions this worker owns in stage two: those assigned, once every table is recovered.

    ``turn`` rises with each rebalance, so whoever worked across one can tell.
    """

    def __init__(self, app: faust.App, topic: str) -> None:
        self._app = app
        self._topic = topic
        self._waiting: set[str] = set()
        self._tables: dict[str, Callable[[frozenset[int]], None]] = {}
        self._on_lost: list[Callable[[], None]] = []
        self.partitions: frozenset[int] = frozenset()
        self.recovered = False
        self.turn = 0
        app.on_partitions_revoked.connect(self._revoked)

    def follow(
        self, table: BatchedTable, load: Callable[[frozenset[int]], None], lost: Callable[[], None]
    ) -> None:
        """``load`` is called with the owned partitions once this table is recovered, before any new event;
        ``lost`` when a rebalance begins: everything not yet in the changelog is to be dropped.
        """
        self._tables[table.name] = load
        self._waiting.add(table.name)
        self._on_lost.append(lost)

        async def recovered() -> None:
            load(self._assigned())
            self._waiting.discard(table.name)
            if not self._waiting:
                self.partitions, self.recovered = self._assigned(), True

        table.on_recover(recovered)

    def _assigned(self) -> frozenset[int]:
        return frozenset(tp.partition for tp in self._app.consumer.assignment() if tp.topic == self._topic)

    async def _revoked(self, app: faust.App, revoked: object, **_: object) -> None:
        self.turn += 1
        self.partitions, self.recovered = frozenset(), False
        self._waiting = set(self._tables)
        for lost in self._on_lost:
            lost()


class Settler:
    """Acknowledges events only when what they changed is in the changelogs: then, and not before, may their
    offsets be committed. A crash in between replays them, and the applied offsets make that exact.
    """

    def __init__(self, collect: Callable[[], Iterable[Write]]) -> None:
        self._collect = collect
        self._events: list[Any] = []
        self.settled: dict[tuple[str, int], int] = {}
        """(topic, partition) to the last offset that may be committed."""
        self._turn = 0
        self._wrote = 0
        self._busy = asyncio.Lock()

    def note(self, event: Any) -> None:
        """An event was applied in memory."""
        self._events.append(event)

    def drop(self) -> None:
        """A rebalance: what is not settled comes again, here or elsewhere."""
        self._turn += 1
        self._events, self.settled = [], {}

    async def settle(self, over_s: float = 0.0) -> None:
        """Write what changed, wait for the changelog, acknowledge.

        The writes are spread over ``over_s`` seconds, as far as there are as many as the last time: all at
        once they would keep rollups waiting for a quarter of a second.
        """
        loop = asyncio.get_running_loop()
        async with self._busy:
            ends_s = loop.time() + over_s
            events, self._events = self._events, []
            turn = self._turn
            pause_s = over_s * YIELD_EVERY / self._wrote if self._wrote > YIELD_EVERY else 0.0
            writes = []
            for table, key, value, partition in self._collect():
                writes.append(table.write(key, value, partition))
                if len(writes) % YIELD_EVERY == 0:
                    await asyncio.sleep(pause_s if loop.time() < ends_s else 0.0)
                    if turn != self._turn:
                        return
            self._wrote = len(writes)
            if writes:
                await asyncio.gather(*writes)
            if turn == self._turn:
                for event in events:
                    event.ack()
                    self.settled[event.message.topic, event.message.partition] = event.message.offset
