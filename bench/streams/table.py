"""A large live table: instances that report each second, and known ones that are quiet.

Measures memory, the CPU of the worker in the steady state, the same with nobody reporting (timers alone), and
how long a fresh worker takes to recover all after a kill -9.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from bench.streams.arms import Arm, ours
from bench.streams.cpu import cpu_s, rss_bytes
from bench.streams.events import instance_of, pool_of
from bench.streams.log import Rows, make_topics, register
from infra.kafka.embedded import EmbeddedKafka
from schemas.codec import envelope_headers
from schemas.telemetry import Telemetry
from schemas.topics import TELEMETRY
from transport.clock import now_ms

MEASURED_S = 12.0
PER_ENVELOPE = 100


def scrape(number: int, at_ms: int, tokens: int) -> bytes:
    """One scrape of an instance as JSON."""
    return (
        b'{"instance":"%s","boot":"b0","boot_started_at_ms":%d,"engine":"vllm","region":"eu","pools":["%s"],'
        b'"at_ms":%d,"reachable":true,"scrape_ms":3.0,"gauges":{'
        b'"requests_running":{"value":%d.0,"quality":"fresh","age_ms":0.0},'
        b'"requests_waiting":{"value":0.0,"quality":"fresh","age_ms":0.0},'
        b'"kv_usage_ratio":{"value":0.5,"quality":"fresh","age_ms":0.0},'
        b'"kv_capacity_tokens":{"value":400000.0,"quality":"fresh","age_ms":0.0}},"counters":{'
        b'"prompt_tokens_total":{"value":%d.0,"quality":"fresh","age_ms":0.0},'
        b'"generation_tokens_total":{"value":%d.0,"quality":"fresh","age_ms":0.0}}}'
    ) % (
        instance_of(number).encode(),
        at_ms - at_ms % 86_400_000,
        pool_of(number).encode(),
        at_ms,
        number % 40,
        tokens * 3,
        tokens,
    )


async def tell(producer: AIOKafkaProducer, instances: int, seconds: float) -> None:
    """Each instance reports once a second, spread over it."""
    headers, began, turn = envelope_headers(Telemetry), time.monotonic(), 0
    groups = [range(at, min(at + PER_ENVELOPE, instances)) for at in range(0, instances, PER_ENVELOPE)]
    while time.monotonic() - began < seconds:
        for place, group in enumerate(groups):
            at = now_ms()
            events = b",".join(scrape(number, at, 1_000 + turn * 50) for number in group)
            head = b'{"producer":"s%d","boot":"b","seq":%d,"sent_at_ms":%d,"events":[' % (place, turn, at)
            await producer.send(TELEMETRY.name, head + events + b"]}", key=b"s%d" % place, headers=headers)
            due = began + turn + (place + 1) / len(groups)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        turn += 1


async def measure(bootstrap: str, arm: Arm, instances: int, quiet: int) -> dict[str, Any]:
    """The figures of one worker."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5)
    await producer.start()
    rows = Rows(bootstrap, arm)
    try:
        await register(producer, range(instances + quiet))
        await rows.start()
        began = time.monotonic()
        arm.start()
        await _ready(arm)
        first_s = time.monotonic() - began
        await tell(producer, instances, 4.0)
        before_s, before_rows, began = cpu_s(arm.pid), rows.count, time.monotonic()
        await tell(producer, instances, MEASURED_S)
        lasted_s = time.monotonic() - began
        cores, written = (cpu_s(arm.pid) - before_s) / lasted_s, (rows.count - before_rows) / lasted_s
        memory = rss_bytes(arm.pid)
        await asyncio.sleep(3.0)
        before_s, began = cpu_s(arm.pid), time.monotonic()
        await asyncio.sleep(6.0)
        idle = (cpu_s(arm.pid) - before_s) / (time.monotonic() - began)
        arm.send(signal.SIGKILL)
        if arm.process is not None:
            arm.process.wait()
        began = time.monotonic()
        arm.start()
        await _ready(arm)
        return {
            "instances": instances,
            "quiet": quiet,
            "first_start_s": round(first_s, 1),
            "recovery_s": round(time.monotonic() - began, 1),
            "rss_mb": round(memory / 2**20),
            "rss_after_recovery_mb": round(rss_bytes(arm.pid) / 2**20),
            "cores_live": round(cores, 3),
            "cores_timers": round(idle, 3),
            "rows_per_s": round(written),
        }
    finally:
        arm.stop()
        await rows.stop()
        await producer.stop()


async def _ready(arm: Arm) -> None:
    ends = time.monotonic() + 120.0
    while not arm.ready():
        arm.check()
        if time.monotonic() > ends:
            raise RuntimeError("The worker was not ready within 120 s.")
        await asyncio.sleep(0.1)


def run(folder: Path, instances: int = 5_000, quiet: int = 45_000) -> dict[str, Any]:
    """One worker on a broker of its own."""
    with EmbeddedKafka(folder / "kafka-table") as broker:
        arm = ours(broker.bootstrap, folder)
        asyncio.run(make_topics(broker.bootstrap, [arm]))
        return asyncio.run(measure(broker.bootstrap, arm, instances, quiet))
