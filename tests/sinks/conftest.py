"""One embedded ClickHouse for the session (one path a process), emptied for each test, and its endpoint."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from infra.ports import free_port
from schemas.topics import Topic
from sinks.clickhouse.engine import ClickHouseStore, embedded_path, open_embedded
from sinks.clickhouse.migrations import migrate
from sinks.clickhouse.tables import BY_TOPIC, TABLES
from sinks.endpoint import Endpoint
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.read_engine import ReadEngine
from sinks.records import Batch
from sinks.writer import Writer
from tests.sinks.events import Record

Put = Callable[[Topic, list[Record]], Awaitable[Batch]]


@pytest.fixture(scope="session")
def sink_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sink")


@pytest.fixture(scope="session")
def opened(sink_data: Path) -> Iterator[ClickHouseStore]:
    store = open_embedded(sink_data)
    migrate(store)
    yield store
    store.close()


@pytest.fixture
def store(opened: ClickHouseStore) -> ClickHouseStore:
    """Migrated and empty."""
    migrate(opened)
    for name in [table.name for table in TABLES] + ["telemetry_1m"]:
        opened.command(f"TRUNCATE TABLE {name}")
    return opened


@pytest.fixture
def put(store: ClickHouseStore) -> Put:
    """Stores records as the consumer does; returns the batch, with what was refused."""

    async def write(topic: Topic, records: list[Record]) -> Batch:
        writer = Writer(store, Health(), SinkMetrics(), backoff_s=0.0)
        await writer.recover()
        batch = Batch()
        batch.add(BY_TOPIC[topic.name], records)
        for table, rows in batch.rows.items():
            await writer.write(table, rows)
        return batch

    return write


@pytest.fixture(scope="session")
def endpoint(opened: ClickHouseStore, sink_data: Path) -> Iterator[str]:
    """The URL of the endpoint, served from a loop of its own as clients and the CLI block theirs."""
    engine = ReadEngine(embedded_path(sink_data))
    health = Health(following=True)
    port, loop, ready = free_port(), asyncio.new_event_loop(), threading.Event()
    runner: list[Any] = []

    async def serve() -> None:
        runner.append(web.AppRunner(Endpoint(health, SinkMetrics(), engine).app()))
        await runner[0].setup()
        await web.TCPSite(runner[0], "127.0.0.1", port).start()
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield f"http://127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(runner[0].cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    engine.close()
