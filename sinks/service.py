"""The sink as one process: store, migrations, consumer and HTTP, from start to graceful end."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from sinks.clickhouse.engine import ClickHouseStore, embedded_path, open_embedded, open_server
from sinks.clickhouse.migrations import migrate
from sinks.consumer import SinkConsumer
from sinks.endpoint import Endpoint
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.read_engine import ReadEngine
from sinks.writer import Writer
from transport.admin import ensure_topics
from transport.producer import start_producer

log = structlog.get_logger(__name__)

LAST_BATCH_S = 10.0


class PortTaken(RuntimeError):  # noqa: N818 - reads as what happened
    """The HTTP port can't be had."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What one sink is started with; ``clickhouse_url`` takes the place of the embedded engine."""

    kafka: str
    data: Path
    host: str = "127.0.0.1"
    port: int = 8123
    clickhouse_url: str | None = None
    app: str = "tokenfleet"
    batch_ms: float = 1000.0


async def run_sink(options: SinkOptions, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``.

    Raises BrokerUnavailable, StoreError, MigrationError, LogMismatch or PortTaken where it can't start. A
    consumer that stops later (health says why) leaves the endpoint up for audits.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await ensure_topics(options.kafka)
    producer = await start_producer(options.kafka)
    store: ClickHouseStore | None = None
    engine: ReadEngine | None = None
    runner: web.AppRunner | None = None
    consuming: asyncio.Task[None] | None = None
    try:
        store = await asyncio.to_thread(_open, options)
        await asyncio.to_thread(migrate, store)
        health, metrics = Health(), SinkMetrics()
        if options.clickhouse_url is None:
            engine = await asyncio.to_thread(ReadEngine, embedded_path(options.data))
        runner = web.AppRunner(Endpoint(health, metrics, engine).app(), access_log=None)
        await runner.setup()
        await _listen(runner, options)
        consumer = SinkConsumer(
            options.kafka,
            Writer(store, health, metrics),
            producer,
            health,
            metrics,
            group=f"{options.app}-sink",
            batch_ms=options.batch_ms,
        )
        await consumer.start()
        consuming = asyncio.create_task(consumer.run(), name="sink-consumer")
        log.info("sink_ready", url=f"http://{options.host}:{options.port}")
        await stop.wait()
        consumer.stop()
        await asyncio.wait([consuming], timeout=LAST_BATCH_S)
    finally:
        if consuming is not None:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
        if runner is not None:
            await runner.cleanup()
        if engine is not None:
            await asyncio.to_thread(engine.close)
        await producer.stop()
        if store is not None:
            await asyncio.to_thread(store.close)
    log.info("sink_stopped")


def _open(options: SinkOptions) -> ClickHouseStore:
    if options.clickhouse_url is not None:
        return open_server(options.clickhouse_url)
    return open_embedded(options.data)


async def _listen(runner: web.AppRunner, options: SinkOptions) -> None:
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        raise PortTaken(
            f"The sink can't listen on {options.host}:{options.port}: {error.strerror or error}. "
            "Choose another port with --port."
        ) from error
