"""The router's row: sent every second and soon after unmet demand; it is also the request for leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from router.gate import AdmissionGate
from router.health import Mode
from schemas.base import Row
from schemas.routers import RouterRow
from schemas.topics import ROUTERS, Topic
from transport.clock import monotonic_ms, now_ms

log = structlog.get_logger(__name__)


class RowSink(Protocol):
    """What the heartbeat needs of transport.producer.RowProducer."""

    async def put(self, topic: Topic, row: Row, *, partition_key: str) -> asyncio.Future[object]: ...


class Heartbeat:
    """Sends rows until stopped. ``soon`` asks for one without waiting for the next second."""

    def __init__(
        self,
        rows: RowSink,
        gate: AdmissionGate,
        *,
        router: str,
        boot: str,
        boot_started_at_ms: int,
        entry_region: str,
        url: str,
        mode: Callable[[], Mode],
        in_flight: Callable[[], int],
        every_ms: float,
        min_gap_ms: float,
    ) -> None:
        self._rows = rows
        self._gate = gate
        self._router = router
        self._boot = boot
        self._boot_started_at_ms = boot_started_at_ms
        self._entry_region = entry_region
        self._url = url
        self._mode = mode
        self._in_flight = in_flight
        self._every_s = every_ms / 1000.0
        self._min_gap_s = min_gap_ms / 1000.0
        self._wake = asyncio.Event()
        self._seq = 0
        self._task: asyncio.Task[None] | None = None

    def soon(self) -> None:
        """Demand has appeared that no lease covers: say so at once (within the least gap)."""
        self._wake.set()

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._run(), name="heartbeat")

    async def stop(self) -> None:
        """End the loop; see ``beat`` for a last row."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def beat(self) -> None:
        """Send one row. While the broker is away it waits at most a second; the next row replaces it."""
        self._seq += 1
        self._gate.keep_wants_alive()
        at_ms = monotonic_ms()
        self._gate.holder.sent(self._seq, at_ms)
        row = RouterRow(
            as_of_ms=now_ms(),
            valid_for_ms=3 * self._every_s * 1000.0,
            epoch=self._boot_started_at_ms,
            version=self._seq,
            router=self._router,
            boot=self._boot,
            boot_started_at_ms=self._boot_started_at_ms,
            entry_region=self._entry_region,
            url=self._url,
            mode=self._mode(),
            in_flight_requests=self._in_flight(),
            demands=self._gate.holder.demands(at_ms),
        )
        try:
            async with asyncio.timeout(1.0):
                future = await self._rows.put(ROUTERS, row, partition_key=self._router)
        except Exception as error:  # a heartbeat that fails must not end the heartbeats
            log.warning("heartbeat_not_sent", error=type(error).__name__)
            return
        future.add_done_callback(_note_failure)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self.beat()
            self._gate.pump()
            await asyncio.sleep(self._min_gap_s)
            try:
                async with asyncio.timeout(max(0.0, self._every_s - self._min_gap_s)):
                    await self._wake.wait()
            except TimeoutError:
                continue


def _note_failure(future: asyncio.Future[object]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("heartbeat_not_sent", error=type(error).__name__)
