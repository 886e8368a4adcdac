"""Following compacted topics: every reader reads every partition, from the start, without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from minds.rows import Change, RowView
from schemas.codec import Refused
from schemas.topics import Topic
from transport.clock import monotonic_ms
from transport.consumers import stop_consumer
from transport.log_reader import partitions_of

log = structlog.get_logger(__name__)

OnChange = Callable[[Topic, Change], None]
OnRefused = Callable[[Topic, int, int, Refused], None]


class TableReader:
    """Keeps a RowView a topic up to date.

    ``caught_up`` turns True once all records that were there at the start have been applied, and stays so.
    A broker that goes away leaves the last good rows in place; ``silent_ms`` says for how long.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[Topic],
        *,
        on_change: OnChange | None = None,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self.views: dict[str, RowView] = {topic.name: RowView(topic) for topic in topics}
        self._topics = {topic.name: topic for topic in topics}
        self._on_change = on_change
        self._on_refused = on_refused
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._last_answer_ms = monotonic_ms()
        self.refused = 0

    @property
    def caught_up(self) -> bool:
        return self._caught_up.is_set()

    @property
    def silent_ms(self) -> float:
        """How long ago the broker last answered a fetch or an offset request."""
        return monotonic_ms() - self._last_answer_ms

    def view(self, topic: Topic) -> RowView:
        """The view of one of this reader's topics."""
        return self.views[topic.name]

    async def start(self) -> None:
        """Begin to follow; returns at once. See ``wait_caught_up``."""
        self._task = asyncio.create_task(self._run(), name="table-reader")

    async def wait_caught_up(self, timeout_s: float) -> None:
        """Wait until the tables are complete; TimeoutError after ``timeout_s``."""
        await asyncio.wait_for(self._caught_up.wait(), timeout_s)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=500,  # a row is answered at once; this is how often an idle broker is asked
                request_timeout_ms=10_000,
            )
            try:
                await consumer.start()
                await self._follow(consumer)
            except asyncio.CancelledError:
                raise
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("tables_not_followed", error=type(error).__name__, again_in_s=1)
            except Exception:
                log.exception("table_reader_failed", again_in_s=1)
            finally:
                await stop_consumer(consumer)
            await asyncio.sleep(1.0)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        partitions: list[TopicPartition] = []
        for name in self.views:
            partitions += await partitions_of(consumer, name)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        behind = {tp for tp, end in ends.items() if end > 0}
        probed_ms = monotonic_ms()
        while True:
            batches = await consumer.getmany(timeout_ms=200, max_records=5000)
            for tp, records in batches.items():
                for record in records:
                    self._apply(tp, record)
            if batches:
                self._last_answer_ms = monotonic_ms()
            if behind:
                behind = {tp for tp in behind if await consumer.position(tp) < ends[tp]}
            if not behind:
                self._caught_up.set()
            if monotonic_ms() - probed_ms > 2000:
                # An idle fetch looks the same whether the broker is quiet or gone: ask for an offset.
                probed_ms = monotonic_ms()
                await consumer.end_offsets(partitions[:1])
                self._last_answer_ms = monotonic_ms()

    def _apply(self, tp: TopicPartition, record: object) -> None:
        topic = self._topics[tp.topic]
        try:
            change = self.views[tp.topic].apply(
                tp.partition,
                record.offset,  # type: ignore[attr-defined]
                record.key,  # type: ignore[attr-defined]
                record.headers,  # type: ignore[attr-defined]
                record.value,  # type: ignore[attr-defined]
            )
        except Refused as refused:
            self.refused += 1
            log.warning("row_refused", topic=tp.topic, partition=tp.partition, reason=refused.reason)
            if self._on_refused is not None:
                self._on_refused(topic, tp.partition, record.offset, refused)  # type: ignore[attr-defined]
            return
        if change is not None and self._on_change is not None:
            self._on_change(topic, change)
