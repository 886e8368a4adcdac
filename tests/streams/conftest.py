"""Worker processes on a real Kafka, and a hand on the log that they work on."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.topics import TOPICS
from tests.streams.fleet import Log, Worker
from transport.admin import ensure_topics
from transport.producer import start_producer
from transport.table_reader import TableReader


@pytest.fixture
async def log(kafka: Any) -> AsyncIterator[Log]:
    await ensure_topics(kafka.bootstrap)
    producer = await start_producer(kafka.bootstrap)
    reader = TableReader(kafka.bootstrap, [topic for topic in TOPICS if topic.compacted])
    await reader.start()
    await reader.wait_caught_up(20)
    log = Log(kafka.bootstrap, producer, reader)
    yield log
    await log.close()
    await reader.stop()
    await producer.stop()


@pytest.fixture
def unique() -> str:
    """A suffix that keeps this test's ids apart from all others on the broker."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def make_worker(kafka: Any, unique: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(name: str = "streams-0", *options: str) -> Worker:
        worker = Worker(kafka.bootstrap, f"t{unique}", f"{name}.{unique}", tmp_path, *options)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        if worker.process is not None:
            with contextlib.suppress(OSError):
                os.kill(worker.process.pid, signal.SIGCONT)
        worker.kill()
