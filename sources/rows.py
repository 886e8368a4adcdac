"""Writing an agent's rows to a compacted topic without blocking: newest wins while the broker is away."""

from __future__ import annotations

import asyncio

import structlog
from aiokafka.errors import KafkaError

from schemas.base import Row
from schemas.topics import Topic
from transport.partitioning import partition_of
from transport.producer import RowProducer

log = structlog.get_logger(__name__)

_Slot = tuple[str, int]
"""A row's key and the partition of its home: one row or tombstone waits for each."""


class RowQueue:
    """Queues rows and tombstones of one topic, and writes them in order under one epoch.

    Stamps are given when a record is written, so a row that replaced a waiting one is the newer. A write that
    failed is tried again unless something newer waits by then. What waits is bounded by the number of keys.
    """

    def __init__(self, rows: RowProducer, topic: Topic, *, epoch: int) -> None:
        self._rows = rows
        self._topic = topic
        self._epoch = epoch
        self._version = 0
        self._homes: dict[str, str] = {}
        self._waiting: dict[_Slot, tuple[str, Row | None]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.healthy = True
        self.written = 0

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name=f"rows-{self._topic.name}")

    def put(self, row: Row, home: str) -> None:
        """Queue a row; a tombstone first where its home (the partition key) moved to another partition."""
        key = row.key()
        before = self._homes.get(key)
        if before is not None and self._partition(before) != self._partition(home):
            self._queue(key, before, None)
        self._homes[key] = home
        self._queue(key, home, row)

    def remove(self, key: str, home: str | None = None) -> None:
        """Queue a tombstone for a row that was put, here or (``home`` given) in an earlier life."""
        if home := self._homes.pop(key, home):
            self._queue(key, home, None)

    def _queue(self, key: str, home: str, row: Row | None) -> None:
        slot = (key, self._partition(home))
        self._waiting.pop(slot, None)
        self._waiting[slot] = (home, row)
        self._idle.clear()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._write_waiting()
            self._idle.set()

    async def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, {}
        self._in_flight = len(batch)
        sent: list[tuple[_Slot, tuple[str, Row | None], asyncio.Future[object]]] = []
        failed: list[tuple[_Slot, tuple[str, Row | None]]] = []
        error: BaseException | None = None
        for slot, (home, row) in batch.items():
            self._version += 1
            try:
                sent.append((slot, (home, row), await self._send(slot[0], home, row)))
            except (KafkaError, OSError) as caught:
                failed.append((slot, (home, row)))
                error = caught
        results = await asyncio.gather(*(future for _, _, future in sent), return_exceptions=True)
        for (slot, what, _), result in zip(sent, results, strict=True):
            if isinstance(result, BaseException):
                failed.append((slot, what))
                error = result
            else:
                self.written += 1
        self._in_flight = 0
        if error is None:
            if not self.healthy:
                log.info("rows_written_again", topic=self._topic.name)
            self.healthy = True
            return
        if self.healthy:
            log.warning(
                "rows_not_written", topic=self._topic.name, rows=len(failed), error=type(error).__name__
            )
        self.healthy = False
        self._waiting = dict(failed) | self._waiting
        await asyncio.sleep(0.5)

    async def _send(self, key: str, home: str, row: Row | None) -> asyncio.Future[object]:
        if row is None:
            return await self._rows.remove(
                self._topic, key, partition_key=home, epoch=self._epoch, version=self._version
            )
        stamped = row.model_copy(update={"epoch": self._epoch, "version": self._version})
        return await self._rows.put(self._topic, stamped, partition_key=home)

    async def close(self, *, timeout_s: float = 3.0) -> None:
        """Wait until what is queued is written, at most ``timeout_s``, then stop."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            lost = len(self._waiting) + self._in_flight
            log.error("rows_lost_at_close", topic=self._topic.name, rows=lost)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _partition(self, home: str) -> int:
        return partition_of(home, self._topic.partitions)
