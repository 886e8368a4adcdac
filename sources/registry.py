"""Writing the registry rows of an agent's engines: newest wins while the broker is away."""

from __future__ import annotations

import asyncio

import structlog
from aiokafka.errors import KafkaError

from schemas.endpoints import EndpointRow
from schemas.topics import ENDPOINTS
from transport.partitioning import partition_of
from transport.producer import RowProducer

log = structlog.get_logger(__name__)

_Slot = tuple[str, int]
"""An instance and the partition of its home pool: one row or tombstone waits for each."""


class EndpointRegistry:
    """Queues rows and tombstones without blocking, and writes them in order under one epoch.

    Stamps are given when a record is written, so a row that replaced a waiting one is the newer. A write that
    failed is tried again unless something newer waits by then.
    """

    def __init__(self, rows: RowProducer, *, epoch: int) -> None:
        self._rows = rows
        self._epoch = epoch
        self._version = 0
        self._homes: dict[str, str] = {}
        self._waiting: dict[_Slot, tuple[str, EndpointRow | None]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.healthy = True
        self.written = 0

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="endpoint-registry")

    def put(self, row: EndpointRow) -> None:
        """Queue a row; a tombstone first where its home pool moved to another partition."""
        home = row.pools[0]
        before = self._homes.get(row.instance)
        if before is not None and _partition(before) != _partition(home):
            self._queue(row.instance, before, None)
        self._homes[row.instance] = home
        self._queue(row.instance, home, row)

    def remove(self, instance: str) -> None:
        """Queue a tombstone for an instance that was put."""
        if home := self._homes.pop(instance, None):
            self._queue(instance, home, None)

    def _queue(self, instance: str, home: str, row: EndpointRow | None) -> None:
        slot = (instance, _partition(home))
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
        sent: list[tuple[_Slot, tuple[str, EndpointRow | None], asyncio.Future[object]]] = []
        failed: list[tuple[_Slot, tuple[str, EndpointRow | None]]] = []
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
                log.info("endpoint_rows_written_again")
            self.healthy = True
            return
        if self.healthy:
            log.warning("endpoint_rows_not_written", rows=len(failed), error=type(error).__name__)
        self.healthy = False
        self._waiting = dict(failed) | self._waiting
        await asyncio.sleep(0.5)

    async def _send(self, instance: str, home: str, row: EndpointRow | None) -> asyncio.Future[object]:
        if row is None:
            return await self._rows.remove(
                ENDPOINTS, instance, partition_key=home, epoch=self._epoch, version=self._version
            )
        stamped = row.model_copy(update={"epoch": self._epoch, "version": self._version})
        return await self._rows.put(ENDPOINTS, stamped, partition_key=home)

    async def close(self, *, timeout_s: float = 3.0) -> None:
        """Wait until what is queued is written, at most ``timeout_s``, then stop."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            log.error("endpoint_rows_lost_at_close", rows=len(self._waiting) + self._in_flight)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _partition(pool: str) -> int:
    return partition_of(pool, ENDPOINTS.partitions)
