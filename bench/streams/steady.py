"""A steady rate: from an event's append to the published row that holds it, and the cores that it takes."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from bench.streams.arms import Arm, Row, ours, peers
from bench.streams.cpu import cpu_s, rss_bytes
from bench.streams.events import KEYS, SINGLE_HEADER, Stream, instance_of, partition_of_key
from bench.streams.log import Rows, Writer, make_topics, register
from infra.kafka.embedded import EmbeddedKafka
from transport.clock import now_ms

FLUSH_MS = 70
"""Of ours: what a third of a core affords; the flow of bytewax publishes 100 ms after an event."""
TICK_S = 0.005
SETTLE_S = 3.0
"""Left out at the start: caches fill, the first rows are made."""


class Freshness:
    """Latencies of events, by the broker's clock at both ends: a row of count ``n`` holds the first ``n``
    events of its key. All is noted first and reckoned in the end: measuring takes little while it goes on.
    """

    def __init__(self) -> None:
        self._written: dict[int, deque[str]] = defaultdict(deque)
        self._appended_ms: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._rows: dict[str, tuple[array[int], array[int]]] = {}

    def wrote(self, partition: int, instance: str) -> None:
        """An event of this key goes to the partition."""
        self._written[partition].append(instance)

    def appended(self, partition: int, events: int, appended_ms: int) -> None:
        """The next events of the partition were appended then."""
        written = self._written[partition]
        for _ in range(events):
            self._appended_ms[written.popleft()].append(appended_ms)

    def take(self, row: Row, appended_ms: int) -> None:
        """Note a row with the broker's time of it."""
        instance, n, _, _ = row
        counts, times = self._rows.setdefault(instance, (array("q"), array("q")))
        counts.append(n)
        times.append(appended_ms)

    def latencies_ms(self, since_ms: float) -> list[int]:
        """In order, of the events that were appended since then."""
        found: list[int] = []
        for instance, (counts, times) in self._rows.items():
            appended, before = self._appended_ms[instance], 0
            for n, at_ms in zip(counts, times, strict=True):
                if n > before:
                    found += [at_ms - at for at in appended[before:n] if at >= since_ms]
                    before = n
        return sorted(found)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of an ordered list; NaN of nothing."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def run_arm(bootstrap: str, arm: Arm, rate: int, seconds: float) -> dict[str, Any]:
    """Feed an arm at a steady rate, an event a record, and measure."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=256 * 1024
    )
    await producer.start()
    stream = Stream(2)
    fresh = Freshness()
    writer = Writer(producer, arm.source, SINGLE_HEADER, fresh.appended)
    rows = Rows(bootstrap, arm, fresh.take)
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
        sent, before_s, before_rss, measured_from, since_ms = 0, 0.0, 0, 0.0, 0
        gc.freeze()
        gc.disable()  # the benchmark's own garbage is not what is measured
        behind_s = 0.0
        while (now_s := time.monotonic()) - began < seconds + SETTLE_S:
            due = int((now_s - began) * rate)
            at = now_ms()
            batch = []
            for _ in range(due - sent):
                key = rng.randrange(KEYS)
                partition = partition_of_key(key)
                batch.append((partition, stream.event(key, at)))
                fresh.wrote(partition, instance_of(key))
            sent = due
            if batch:
                await writer.write(batch)
            if not measured_from and now_s - began >= SETTLE_S:
                since_ms, measured_from = at, now_s
                before_s, before_rss = cpu_s(arm.pid), rss_bytes(arm.pid)
            behind_s = max(behind_s, time.monotonic() - now_s - TICK_S)
            await asyncio.sleep(max(0.0, now_s + TICK_S - time.monotonic()))
        used_s, lasted_s = cpu_s(arm.pid) - before_s, time.monotonic() - measured_from
        after_rss = rss_bytes(arm.pid)
        await asyncio.sleep(1.5)
        ended = time.monotonic() - 1.5
        latencies_ms = fresh.latencies_ms(since_ms)
        return {
            "events_per_s": round(sent / (ended - began)),
            "p50_ms": quantile(latencies_ms, 0.5),
            "p99_ms": quantile(latencies_ms, 0.99),
            "cores": round(used_s / lasted_s, 3),
            "rss_mb": [round(before_rss / 2**20), round(after_rss / 2**20)],
            "rows_per_s": round(rows.count / (seconds + SETTLE_S)),
            "writer_late_ms": round(behind_s * 1000),
            "right": all(stream.loop.agrees(*row) for row in rows.last.values()),
        }
    finally:
        gc.enable()
        arm.stop()
        await rows.stop()
        await producer.stop()


def run(folder: Path, python: Path | None, rate: int = 50_000, seconds: float = 20.0) -> dict[str, Any]:
    """This app at a flush of ``FLUSH_MS``, then bytewax, on one broker."""
    found: dict[str, Any] = {}
    with EmbeddedKafka(folder / "kafka-steady") as broker:
        arms = [ours(broker.bootstrap, folder, "--flush-ms", str(FLUSH_MS))]
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
