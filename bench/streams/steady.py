"""A steady rate: from an event's append to the published row that holds it, and the cores that it takes."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from bench.streams.arms import Arm, Row, ours, peers
from bench.streams.cpu import cpu_s, rss_bytes
from bench.streams.events import KEYS, SINGLE_HEADER, Stream, partition_of_key
from bench.streams.log import Rows, Writer, make_topics, register
from infra.kafka.embedded import EmbeddedKafka
from transport.clock import now_ms

TICK_S = 0.005
SETTLE_S = 3.0
"""Left out at the start: caches fill, the first rows are made."""


class Freshness:
    """Latencies of events: a row of count ``n`` holds the first ``n`` events of its key."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._seen: dict[str, int] = {}
        self.since_ms = float("inf")
        self.latencies_ms: list[float] = []

    def take(self, row: Row, appended_ms: int) -> None:
        """Note a row with the broker's time of it."""
        instance, n, _, _ = row
        before = self._seen.get(instance, 0)
        if n <= before:
            return
        self._seen[instance] = n
        times = self._stream.loop.at_ms.get(instance, [])
        self.latencies_ms += [appended_ms - at for at in times[before:n] if at >= self.since_ms]

    def quantile(self, share: float) -> float:
        """A quantile of the latencies in milliseconds."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def run_arm(bootstrap: str, arm: Arm, rate: int, seconds: float) -> dict[str, Any]:
    """Feed an arm at a steady rate, an event a record, and measure."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=256 * 1024
    )
    await producer.start()
    stream = Stream(2)
    fresh = Freshness(stream)
    writer, rows = Writer(producer, arm.source, SINGLE_HEADER), Rows(bootstrap, arm, fresh.take)
    rng = random.Random(3)
    try:
        if arm.name == "tokenfleet":
            await register(producer)
        await rows.start()
        arm.start()
        ends = time.monotonic() + 60
        while not arm.ready() and time.monotonic() < ends:
            arm.check()
            await asyncio.sleep(0.1)
        began = time.monotonic()
        sent, before_s, before_rss, measured_from = 0, 0.0, 0, 0.0
        behind_s = 0.0
        while (now_s := time.monotonic()) - began < seconds + SETTLE_S:
            due = int((now_s - began) * rate)
            at = now_ms()
            batch = []
            for _ in range(due - sent):
                key = rng.randrange(KEYS)
                batch.append((partition_of_key(key), stream.event(key, at)))
            sent = due
            if batch:
                await writer.write(batch)
            if not measured_from and now_s - began >= SETTLE_S:
                fresh.since_ms, measured_from = at, now_s
                before_s, before_rss = cpu_s(arm.pid), rss_bytes(arm.pid)
            behind_s = max(behind_s, time.monotonic() - now_s - TICK_S)
            await asyncio.sleep(max(0.0, now_s + TICK_S - time.monotonic()))
        used_s, lasted_s = cpu_s(arm.pid) - before_s, time.monotonic() - measured_from
        after_rss = rss_bytes(arm.pid)
        await asyncio.sleep(1.5)
        return {
            "events_per_s": round(sent / (time.monotonic() - 1.5 - began)),
            "p50_ms": round(fresh.quantile(0.5)),
            "p99_ms": round(fresh.quantile(0.99)),
            "cores": round(used_s / lasted_s, 3),
            "rss_mb": [round(before_rss / 2**20), round(after_rss / 2**20)],
            "rows_per_s": round(rows.count / (seconds + SETTLE_S)),
            "writer_late_ms": round(behind_s * 1000),
            "right": all(stream.loop.agrees(*row) for row in rows.last.values()),
        }
    finally:
        arm.stop()
        await rows.stop()
        await producer.stop()


def run(folder: Path, python: Path | None, rate: int = 50_000, seconds: float = 20.0) -> dict[str, Any]:
    """This app at a flush of 100 ms, then bytewax, on one broker."""
    found: dict[str, Any] = {}
    with EmbeddedKafka(folder / "kafka-steady") as broker:
        arms = [ours(broker.bootstrap, folder, "--flush-ms", "100")]
        if python is not None:
            arms += [
                arm
                for arm in peers(broker.bootstrap, folder / "steady", python, False)
                if arm.name == "bytewax"
            ]
        asyncio.run(make_topics(broker.bootstrap, arms))
        for arm in arms:
            found[arm.name] = asyncio.run(run_arm(broker.bootstrap, arm, rate, seconds))
    return found
