"""The router as a process: connect, read the tables, serve, and stop without dropping anybody."""

from __future__ import annotations

import asyncio
import secrets
import signal

import structlog
from aiohttp import web

from router.app import build
from router.metrics import RouterMetrics
from router.options import RouterOptions
from router.tables import TABLES, FleetTables
from router.upstream import Engines
from schemas.codec import Refused
from schemas.topics import Topic
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.producer import EventProducer, RowProducer, start_producer
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)
_LEAVE_S = 5.0
"""How long to wait for the broker when leaving; what it has not taken by then is lost with the process."""


class PortTaken(RuntimeError):  # noqa: N818 - reads as what happened
    """The address can't be bound."""


class RouterService:
    """One router. ``start``, then ``stop``; ``port`` is the bound one (for port 0)."""

    def __init__(self, kafka: str, options: RouterOptions) -> None:
        self._kafka = kafka
        self._options = options
        self.boot_started_at_ms = now_ms()
        self.boot = f"{self.boot_started_at_ms:x}-{secrets.token_hex(3)}"
        self.port = options.port
        self.tables = FleetTables(endpoint_horizon_ms=options.endpoint_horizon_ms)

    async def start(self) -> None:
        """Serve. Raises BrokerUnavailable where no broker answers, PortTaken where the port is in use."""
        options = self._options
        await ensure_topics(self._kafka)
        metrics = RouterMetrics()
        self._producer = await start_producer(self._kafka)
        try:
            await self._serve(options, metrics)
        except BaseException:
            await self._producer.stop()
            raise

    async def _serve(self, options: RouterOptions, metrics: RouterMetrics) -> None:
        def dropped(topic: Topic, count: int) -> None:
            metrics.events_dropped.labels(topic.name).inc(count)

        def refused(topic: Topic, partition: int, offset: int, error: Refused) -> None:
            metrics.rows_refused.labels(topic.name).inc()

        self._events = EventProducer(
            self._producer, producer_id=options.router, boot=self.boot, on_drop=dropped
        )
        self._reader = TableReader(self._kafka, TABLES, on_change=self.tables.on_change, on_refused=refused)
        self.tables.attach(self._reader.views)
        self._engines = Engines(connect_timeout_ms=options.connect_timeout_ms)
        self.parts = build(
            options,
            boot=self.boot,
            boot_started_at_ms=self.boot_started_at_ms,
            tables=self.tables,
            feed=self._reader,
            events=self._events,
            rows=RowProducer(self._producer),
            engines=self._engines,
            url=f"http://{options.host}:{options.port}",
            metrics=metrics,
        )
        self._runner = web.AppRunner(
            self.parts.app,
            handler_cancellation=True,
            shutdown_timeout=options.drain_s,
            access_log=None,
        )
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, options.host, options.port, backlog=1024)
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            await self._engines.close()
            raise PortTaken(
                f"The router {options.router} can't listen on {options.host}:{options.port}: "
                f"{error.strerror or error}. Choose another port with --port."
            ) from None
        self.port = self._runner.addresses[0][1]
        await self._reader.start()
        self.parts.heartbeat.start()
        log.info("router_started", router=options.router, boot=self.boot, port=self.port)

    async def stop(self) -> None:
        """Say so, take nothing new, let requests in flight finish within the drain time, and leave.

        What is still in flight after that ends as failed (``router_stopping``), recorded like all else.
        """
        parts = self.parts
        parts.health.stopping = True
        await parts.heartbeat.stop()
        await parts.heartbeat.beat()
        await self._runner.cleanup()
        await parts.heartbeat.beat()  # the work that has ended is reported, so its leases are free
        await self._reader.stop()
        await self._events.close()
        await self._engines.close()
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._producer.stop()
        except TimeoutError:
            log.warning("broker_away_at_stop", router=self._options.router)
        log.info("router_stopped", router=self._options.router)


async def run_router(kafka: str, options: RouterOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises BrokerUnavailable or PortTaken at the start."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    service = RouterService(kafka, options)
    await service.start()
    try:
        await ended.wait()
    finally:
        await service.stop()
