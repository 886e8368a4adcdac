"""Whatever hits workers and broker, rows and tables end as the plain fold of the log; on real Kafka."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from infra.kafka.embedded import EmbeddedKafka
from schemas.topics import INSTANCES, OUTCOMES, REGIONS, ROLLUPS, TELEMETRY
from streams.lag import UNRECOVERED_MS
from tests.conftest import _start_or_skip
from tests.streams.faults import (
    Traffic,
    fleet_of,
    reference,
    row_differences,
    stored,
    strike,
    supervised,
    table_differences,
)
from tests.streams.fleet import PATIENCE_S, Log, Worker, eventually
from transport.admin import ensure_topics
from transport.producer import start_producer
from transport.table_reader import TableReader

SEEDS = int(os.environ.get("TOKENFLEET_FAULT_SEEDS", "3"))
"""How many schedules; a soak runs more."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of these tests' own, which they stop and kill."""
    broker = EmbeddedKafka(tmp_path_factory.mktemp("kafka"))
    _start_or_skip(broker)
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
async def own_log(broker: EmbeddedKafka) -> AsyncIterator[Log]:
    await ensure_topics(broker.bootstrap)
    producer = await start_producer(broker.bootstrap)
    reader = TableReader(broker.bootstrap, [INSTANCES, REGIONS])
    await reader.start()
    await reader.wait_caught_up(20)
    log = Log(broker.bootstrap, producer, reader)
    yield log
    await log.close()
    await reader.stop()
    await producer.stop()


async def check(seed: int, broker: EmbeddedKafka, log: Log, unique: str, folder: Path) -> None:
    rng, endpoints, told = random.Random(seed), fleet_of(unique, 7), [f"seed {seed}"]
    first, second = (
        Worker(broker.bootstrap, f"t{unique}", f"w{n}.{unique}", folder, "--flush-ms", "100") for n in (0, 1)
    )
    done = asyncio.Event()
    traffic = Traffic(log, rng, unique, endpoints)
    try:
        await log.register(endpoints)
        first.start()
        flowing = asyncio.create_task(traffic.flow(done))
        await first.ready()
        await strike(random.Random(-seed), broker, first, second, told)
        await asyncio.sleep(1.0)
        done.set()
        await flowing
        states, newest_ms = await reference(log, unique)
        told.append("the log is complete")
        assert len(states) == 7 + 9

        async def settled() -> bool:
            await supervised(first, told)
            return all(
                [
                    await log.settled(f"t{unique}-combiner", OUTCOMES),
                    await log.settled(f"t{unique}-combiner", TELEMETRY),
                    await log.settled(f"t{unique}", ROLLUPS),
                ]
            )

        # A recovery of Faust's that stands still is red after a minute, and only then started again.
        patience_s = PATIENCE_S + UNRECOVERED_MS / 1000.0
        await eventually(settled, lambda: (told, first.tail()), patience_s)
        await eventually(
            lambda: not row_differences(log, states, endpoints),
            lambda: (told, row_differences(log, states, endpoints)[:2], first.tail()),
        )
        tables = await stored(log, f"t{unique}", unique)
        assert table_differences(tables, states, endpoints, newest_ms) == [], told
    finally:
        done.set()
        first.kill()
        second.kill()


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
async def test_the_end_is_the_plain_fold(
    seed: int, broker: EmbeddedKafka, own_log: Log, unique: str, tmp_path: Path
) -> None:
    await check(seed, broker, own_log, unique, tmp_path)
