"""What the tests of streams share: worker processes, a hand on the log that they work on, and events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from infra.ports import free_port
from schemas.base import Event, Row
from schemas.codec import decode_events, envelope_headers, headers_for, to_json
from schemas.decisions import Decision
from schemas.endpoints import EndpointRow
from schemas.envelopes import Envelope
from schemas.outcomes import Outcome
from schemas.readings import EngineCounters, EngineGauges, Reading
from schemas.telemetry import Telemetry
from schemas.topics import ENDPOINTS, Topic
from transport.admin import connect_admin
from transport.clock import now_ms
from transport.partitioning import partition_of
from transport.table_reader import TableReader

PATIENCE_S = 60.0
SESSION_MS = 2_500
"""Shorter than by default, or tests of takeovers would mostly wait."""
REGISTERED_AGAIN_S = 10.0
"""An instance of which nothing is heard for a minute leaves; a test on a busy machine may take longer."""


class Worker:
    """A streams worker as a process."""

    def __init__(self, bootstrap: str, app_id: str, worker_id: str, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.worker_id = worker_id
        self._log = folder / f"{worker_id}.log"
        self._options = [
            *("streams", "--kafka", bootstrap, "--app-id", app_id, "--worker-id", worker_id),
            *("--port", str(self.port), "--data", str(folder / worker_id)),
            *("--session-ms", str(SESSION_MS), *options),
        ]
        self.program = ["-m", "tokenfleet"]
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def of_format(self, number: int) -> None:
        """From its next start on it is a version of the code whose changelogs have this format."""
        code = f"import minds.capacity.folds as f; f.FORMAT = {number}; import tokenfleet.cli as c; c.main()"
        self.program = ["-c", code]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *self._options],
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )

    async def refuses(self) -> str:
        """Start it, and wait until it has ended by itself; what it said last."""
        self.start()
        assert self.process is not None
        assert await asyncio.to_thread(self.process.wait, 60) == 1, self.tail()
        self.process = None
        return " ".join(self.tail().split())

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(20)
        finally:
            self.kill()

    async def get(self, path: str) -> tuple[int, str]:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    async def ready(self) -> None:
        async def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.tail()
            return (await self.get("/readyz"))[0] == 200

        await eventually(answers, self.tail)

    def tail(self) -> str:
        return self._log.read_text()[-3000:] if self._log.exists() else ""


async def eventually(
    check: Callable[[], Any], why: Callable[[], object] = lambda: "", patience_s: float = PATIENCE_S
) -> Any:
    """Wait until the check (sync or async) holds; returns what it said."""
    deadline = time.monotonic() + patience_s
    while True:
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"it never came true: {why()}"
        await asyncio.sleep(0.1)


class Log:
    """Writes what sources and routers write, and reads what workers publish."""

    def __init__(self, bootstrap: str, producer: AIOKafkaProducer, reader: TableReader) -> None:
        self.bootstrap = bootstrap
        self.producer = producer
        self.reader = reader
        self._seq = 0
        self._registered: dict[str, EndpointRow] = {}
        self._again: asyncio.Task[None] | None = None

    async def register(self, endpoints: list[EndpointRow]) -> None:
        """Put endpoints into the registry, and keep them there as a source agent does."""
        self._registered |= {endpoint.instance: endpoint for endpoint in endpoints}
        for endpoint in endpoints:
            await self.put(ENDPOINTS, endpoint, endpoint.pools[0])
        await self.producer.flush()
        if self._again is None:
            self._again = asyncio.create_task(self._register_again())

    async def _register_again(self) -> None:
        while True:
            await asyncio.sleep(REGISTERED_AGAIN_S)
            for name, held in list(self._registered.items()):
                fresh = {"as_of_ms": now_ms(), "version": held.version + 1}
                row = self._registered[name] = held.model_copy(update=fresh)
                with contextlib.suppress(KafkaError):  # a test may have stopped the broker
                    await self.put(ENDPOINTS, row, row.pools[0])

    async def close(self) -> None:
        """Stop registering."""
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)

    async def send(self, topic: Topic, events: list[Any], producer: str) -> None:
        model: type[Event] = type(events[0])
        envelope: Any = Envelope[model](  # type: ignore[valid-type]
            producer=producer, boot="b", seq=self._seq, sent_at_ms=now_ms(), events=events
        )
        self._seq += 1
        await self.producer.send_and_wait(
            topic.name, to_json(envelope), key=producer.encode(), headers=envelope_headers(model)
        )

    async def put(self, topic: Topic, row: Row, partition_key: str) -> None:
        await self.producer.send(
            topic.name,
            to_json(row),
            key=row.key().encode(),
            partition=partition_of(partition_key, topic.partitions),
            headers=headers_for(row),
        )

    async def events(self, topic: Topic) -> list[Any]:
        """All events of a topic that can be decoded, with what came before."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            tps = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            await consumer.seek_to_beginning(*tps)
            found: list[Any] = []
            behind = {tp for tp in tps if ends[tp] > 0}
            while behind:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        with contextlib.suppress(ValueError):
                            found += decode_events(topic, record.headers, record.value).events
                behind = {tp for tp in behind if await consumer.position(tp) < ends[tp]}
            return found
        finally:
            await consumer.stop()

    async def settled(self, group: str, topic: Topic) -> bool:
        """Whether the group has committed everything that there is."""
        admin = await connect_admin(self.bootstrap)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        await consumer.start()
        try:
            tps = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            committed = await admin.list_consumer_group_offsets(group)
            ends = await consumer.end_offsets(tps)
            return all(
                end == 0 or (tp in committed and committed[tp].offset == end) for tp, end in ends.items()
            )
        finally:
            await consumer.stop()
            await admin.close()

    def row(self, topic: Topic, key: str) -> Any | None:
        return self.reader.view(topic).row(key)


def an_endpoint(instance: str, pool: str, region: str = "eu", **changes: Any) -> EndpointRow:
    now = now_ms()
    fields: dict[str, Any] = {
        "as_of_ms": now,
        "valid_for_ms": 60_000.0,
        "epoch": now,
        "version": 1,
        "instance": instance,
        "boot": "b0",
        "boot_started_at_ms": now - 60_000,
        "engine": "vllm",
        "url": "http://127.0.0.1:1",
        "region": region,
        "pools": [pool],
    }
    return EndpointRow(**(fields | changes))


def a_scrape(endpoint: EndpointRow, running: float = 2.0) -> Telemetry:
    def fresh(value: float) -> Reading:
        return Reading(value=value, quality="fresh", age_ms=0.0)

    return Telemetry(
        instance=endpoint.instance,
        boot=endpoint.boot,
        boot_started_at_ms=endpoint.boot_started_at_ms,
        engine=endpoint.engine,
        region=endpoint.region,
        pools=endpoint.pools,
        at_ms=now_ms(),
        reachable=True,
        gauges=EngineGauges(requests_running=fresh(running)),
        counters=EngineCounters(generation_tokens_total=fresh(100.0)),
    )


def a_decision(decision_id: str, pool: str, **changes: Any) -> Decision:
    now = now_ms()
    fields: dict[str, Any] = {
        "decision_id": decision_id,
        "intent_id": f"n-{decision_id}",
        "intent_inferred": True,
        "attempt": 1,
        "at_ms": now,
        "intent_started_at_ms": now,
        "deadline_at_ms": now + 60_000,
        "router": "r-1",
        "router_boot": "rb",
        "tenant": "t",
        "service_class": "chat",
        "pool": pool,
        "entry_region": "edge",
        "verdict": "dispatched",
        "region": "eu",
        "instance": "i-1",
        "ttft_slo_ms": 2000.0,
        "tpot_slo_ms": 60.0,
        "work_tokens": 100.0,
    }
    return Decision(**(fields | changes))


def an_outcome(decision_id: str, pool: str, **changes: Any) -> Outcome:
    now = now_ms()
    fields: dict[str, Any] = {
        "decision_id": decision_id,
        "intent_id": f"n-{decision_id}",
        "intent_inferred": True,
        "attempt": 1,
        "router": "r-1",
        "router_boot": "rb",
        "tenant": "t",
        "service_class": "chat",
        "pool": pool,
        "entry_region": "edge",
        "region": "eu",
        "instance": "i-1",
        "instance_boot": "b0",
        "cause": "ok",
        "at_ms": now,
        "intent_started_at_ms": now - 500,
        "started_at_ms": now - 500,
        "ttft_ms": 100.0,
        "tpot_ms": 20.0,
        "output_tokens": 10,
        "wasted_tokens": 0,
        "ttft_slo_ms": 2000.0,
        "tpot_slo_ms": 60.0,
        "deadline_at_ms": now + 60_000,
        "within_slo": True,
    }
    return Outcome(**(fields | changes))
