"""Catching up on a backlog: events per CPU-second of all of an arm's processes."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from bench.streams.arms import Arm, ours, peers
from bench.streams.cpu import cpu_s, rss_bytes
from bench.streams.events import BATCH_HEADER, KEYS, SINGLE_HEADER, Stream, partition_of_key
from bench.streams.log import Rows, Writer, make_topics, register
from infra.kafka.embedded import EmbeddedKafka
from transport.clock import now_ms

SHARE = {"tokenfleet": 1.0, "bytewax": 1.0, "quixstreams": 0.2, "faust": 0.04}
"""Of the events, for slow arms a prefix of the same bytes: a naive agent would take minutes."""
PATIENCE_S = 120.0


async def run_arm(bootstrap: str, arm: Arm, events: int, batch: int, *, full: bool = False) -> dict[str, Any]:
    """Start the arm, warm it up with one event a key, stop it, append the backlog, let it go, and measure."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=256 * 1024
    )
    await producer.start()
    header = SINGLE_HEADER if batch == 1 else BATCH_HEADER
    writer, rows, stream = Writer(producer, arm.source, header), Rows(bootstrap, arm), Stream(1, full=full)
    try:
        if arm.name == "tokenfleet":
            await register(producer)
        await rows.start()
        arm.start()
        await _until(arm.ready, arm)
        now = now_ms()
        warm_up = [(partition_of_key(key), stream.event(key, now)) for key in range(KEYS)]
        await writer.write((p, v if batch == 1 else stream.envelope(p, 0, now, [v])) for p, v in warm_up)
        await _until(lambda: rows.events >= KEYS, arm)
        await asyncio.sleep(1.0)
        backlog = list(stream.records(events, batch, now - 9_000, 9_000))
        before_s, before_rows = cpu_s(arm.pid), rows.count
        arm.send(signal.SIGSTOP)
        await writer.write(backlog)
        arm.send(signal.SIGCONT)
        began, total = time.monotonic(), stream.loop.events
        seen, seen_at, used_s = -1, began, 0.0
        while rows.events < total:
            arm.check()
            await asyncio.sleep(0.05)
            if rows.events != seen:
                seen, seen_at, used_s = rows.events, time.monotonic(), cpu_s(arm.pid) - before_s
            elif time.monotonic() - seen_at > 4.0 and seen > 0.9 * total:
                break  # a peer without a timer keeps its last rows to itself
            if time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(f"{arm.name} took {seen:,} of {total:,} events in {PATIENCE_S:.0f} s.")
        else:
            used_s = cpu_s(arm.pid) - before_s
        done = rows.events - KEYS
        return {
            "events": done,
            "bytes_per_event": round(sum(len(value) for _, value in backlog) / events, 1),
            "cpu_s": round(used_s, 3),
            "wall_s": round(time.monotonic() - began, 2),
            "rows": rows.count - before_rows,
            "rss_mb": round(rss_bytes(arm.pid) / 2**20),
            "events_per_cpu_s": round(done / used_s),
            "right": all(stream.loop.agrees(*row) for row in rows.last.values()),
        }
    finally:
        arm.stop()
        await rows.stop()
        await producer.stop()


async def _until(check: Any, arm: Arm) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not check():
        arm.check()
        if time.monotonic() > ends:
            raise RuntimeError(f"{arm.name} was not ready within {PATIENCE_S:.0f} s.")
        await asyncio.sleep(0.1)


def run_case(
    folder: Path, python: Path | None, events: int, batch: int, *, full: bool = False, only: str | None = None
) -> dict[str, dict[str, Any]]:
    """All arms on one fresh broker, one after the other: ``{arm: figures}``."""
    found: dict[str, dict[str, Any]] = {}
    with EmbeddedKafka(folder / f"kafka-{batch}-{full}") as broker:
        arms = [ours(broker.bootstrap, folder)]
        if python is not None:
            arms += peers(broker.bootstrap, folder / f"case-{batch}", python, batch > 1)
        arms = [arm for arm in arms if only is None or arm.name == only]
        asyncio.run(make_topics(broker.bootstrap, arms))
        for arm in arms:
            share = round(events * SHARE[arm.name])
            found[arm.name] = asyncio.run(run_arm(broker.bootstrap, arm, share, batch, full=full))
    return found
