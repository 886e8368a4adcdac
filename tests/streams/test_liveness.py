"""A consumer that stalls, or a part that crashes, turns ``/healthz`` red within 15 s and says which.

The worker runs in this process on a real Kafka, so that a test can lay hands on its consumers: they are
stopped as Kafka's clients stop, and the health page has to find out by itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer

from infra.ports import free_port
from schemas.topics import INSTANCES, OUTCOMES, ROLLUPS
from streams.faust_tables import build_app
from streams.options import StreamsOptions
from streams.worker import run_worker
from tests.streams.fleet import Log, an_endpoint, an_outcome, eventually

WITHIN_S = 15.0


@dataclass
class Hands:
    """What a test holds of the worker in this process."""

    port: int
    apps: list[Any] = field(default_factory=list)
    combiners: list[AIOKafkaConsumer] = field(default_factory=list)

    async def get(self, path: str) -> tuple[int, dict[str, str]]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            return answer.status, json.loads(await answer.text())["reasons"]

    async def red(self, component: str) -> str:
        """Wait until the health is red for this component; the reason that it gives."""

        async def said() -> str | None:
            status, reasons = await self.get("/healthz")
            return reasons.get(component) if status == 503 else None

        return str(await eventually(said))


@pytest.fixture
def collector() -> Iterator[None]:
    """A worker sets the collector up for itself; this process is not only its own."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture
def hands(
    log: Log, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: None
) -> Callable[..., Any]:
    held = Hands(free_port())

    def app_of(options: StreamsOptions) -> Any:
        held.apps.append(build_app(options))
        return held.apps[-1]

    class Seen(AIOKafkaConsumer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            held.combiners.append(self)

    monkeypatch.setattr("streams.worker.build_app", app_of)
    monkeypatch.setattr("streams.combiner.AIOKafkaConsumer", Seen)

    @asynccontextmanager
    async def worker(**changes: Any) -> AsyncIterator[Hands]:
        options = StreamsOptions(
            log.bootstrap, f"w.{unique}", tmp_path, port=held.port, app_id=f"t{unique}", **changes
        )
        stop, started = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(run_worker(options, stop, started))
        await started.wait()

        async def ready() -> bool:
            return (await held.get("/readyz"))[0] == 200

        try:
            await eventually(ready)
            yield held
        finally:
            stop.set()
            await running

    return worker


@asynccontextmanager
async def outcomes_flow(log: Log, unique: str) -> AsyncIterator[str]:
    """An outcome each 50 ms of every producer's partition, on one instance, until the end."""
    pool, instance = f"m-{unique}@v1", f"i-{unique}"
    await log.register([an_endpoint(instance, pool)])

    async def flow() -> None:
        number = 0
        while True:
            outcome = an_outcome(f"d-{unique}-{number}", pool, instance=instance)
            await log.send(OUTCOMES, [outcome], f"r-{unique}-{number % 8}")
            number += 1
            await asyncio.sleep(0.05)

    flowing = asyncio.create_task(flow())
    yield instance
    flowing.cancel()
    await asyncio.gather(flowing, return_exceptions=True)


async def counted(log: Log, instance: str) -> None:
    await eventually(lambda: (row := log.row(INSTANCES, instance)) is not None and row.windows[2].attempts)


async def stop_faust(held: Hands) -> None:
    consumer = held.apps[-1].consumer
    consumer.pause_partitions({tp for tp in consumer.assignment() if tp.topic == ROLLUPS.name})


async def stop_combiner(held: Hands) -> None:
    consumer = held.combiners[-1]
    consumer.pause(*consumer.assignment())


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("stop", "named", "settings"),
    [(stop_faust, "capacity", {}), (stop_combiner, "combiner", {"stall_ms": 3_000.0})],
    ids=["faust as started", "combiner"],
)
async def test_a_consumer_that_stalls_in_the_stream(
    log: Log,
    unique: str,
    hands: Any,
    stop: Callable[[Hands], Awaitable[None]],
    named: str,
    settings: dict[str, float],
) -> None:
    async with hands(**settings) as held, outcomes_flow(log, unique) as instance:
        await counted(log, instance)
        assert await held.get("/healthz") == (200, {})
        await stop(held)
        async with asyncio.timeout(WITHIN_S):
            said = await held.red(f"{named}_lag")
        assert f"the {named} has got no further than offset" in said


@pytest.mark.kafka
async def test_a_consumer_that_never_gets_going(log: Log, unique: str, hands: Any) -> None:
    """Stalled before it has settled anything: there is no progress to compare with."""
    async with hands(stall_ms=3_000.0) as held:
        await asyncio.sleep(2.5)  # the watch has looked once since the takeover
        await stop_faust(held)
        async with outcomes_flow(log, unique):
            assert "the capacity has got no further" in await held.red("capacity_lag")


@pytest.mark.kafka
async def test_parts_that_crash(log: Log, unique: str, hands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception out of the agent, out of stage one, and out of a timer; each with its own sentence."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full")

    async with hands() as held, outcomes_flow(log, unique) as instance:
        await counted(log, instance)
        assert await held.get("/healthz") == (200, {})
        for where, component, part in (
            ("streams.faust_tables.Settler.note", f"agent_{ROLLUPS.name}", f"agent of {ROLLUPS.name}"),
            ("streams.interval.SourceInterval.take", "combiner", "combiner"),
            ("streams.publisher.Publisher._regions", "publisher", "publisher"),
        ):
            monkeypatch.setattr(where, broken)
            async with asyncio.timeout(WITHIN_S):
                said = await held.red(component)
            assert said.startswith(f"The {part} crashed")
            assert "the disk is full" in said


@pytest.mark.kafka
async def test_faust_that_ends_by_itself(log: Log, hands: Any) -> None:
    async with hands() as held:
        assert await held.get("/healthz") == (200, {})
        await held.apps[-1].stop()
        async with asyncio.timeout(WITHIN_S):
            assert "The faust ended by itself" in await held.red("faust")
