"""Links and GPUs from a real log to what the tables show: the past that counts, then what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from minds.capacity.gpu_health import LOOK_BACK_MS as GPU_LOOK_BACK_MS
from minds.capacity.gpu_health import GpuTable
from minds.capacity.links import LOOK_BACK_MS, Links
from schemas.codec import headers_for, to_json
from schemas.gpus import GpuSample
from schemas.network import LinkProbe
from schemas.readings import Reading
from schemas.topics import GPUS, LINKS
from streams.event_tail import EventTail, Followed
from tests.streams.fleet import Log
from transport.clock import now_ms

pytestmark = pytest.mark.kafka


def probe(unique: str, rtt_ms: float, at_ms: int) -> LinkProbe:
    return LinkProbe(
        from_region=f"eu-{unique}",
        to_region="us",
        at_ms=at_ms,
        rtt_ms=Reading(value=rtt_ms, quality="fresh", age_ms=0.0),
        loss_ratio=Reading(),
        bandwidth_mbit_per_s=Reading(),
        egress_usd_per_gib=0.02,
    )


class Following:
    def __init__(self, bootstrap: str) -> None:
        self.links, self.gpus = Links(), GpuTable()
        self.tail = EventTail(
            bootstrap,
            [
                Followed(LINKS, LOOK_BACK_MS, self.links.take),
                Followed(GPUS, GPU_LOOK_BACK_MS, self.gpus.take),
            ],
            ahead_ms=5_000.0,
        )

    def rtt(self, unique: str) -> float | None:
        found = {link.to_region: link for link in self.links.links_of(f"eu-{unique}", (), now_ms())}
        return found["us"].rtt_ms.value if "us" in found else None


@contextlib.asynccontextmanager
async def following(bootstrap: str) -> AsyncIterator[Following]:
    made = Following(bootstrap)
    task = asyncio.create_task(made.tail.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Any) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


async def send(log: Log, topic: Any, event: Any) -> None:
    headers = headers_for(type(event))
    await log.producer.send_and_wait(topic.name, to_json(event), key=b"p", headers=headers, partition=0)


async def test_what_was_said_before_and_what_is_said_now(kafka: Any, log: Log, unique: str) -> None:
    host, now = f"h-{unique}", now_ms()
    await send(log, LINKS, probe(unique, 70.0, now - 500))
    await send(log, GPUS, GpuSample(host=host, gpu=f"GPU-{unique}", index=0, at_ms=now, state="ok"))
    async with following(kafka.bootstrap) as made:
        await until(lambda: made.tail.caught_up)
        assert made.rtt(unique) == 70.0
        assert made.gpus.health_of(host, (), now_ms()).state == "ok"
        await send(log, LINKS, probe(unique, 80.0, now_ms()))
        lost = GpuSample(host=host, gpu=f"GPU-{unique}", index=0, at_ms=now_ms(), state="lost")
        await send(log, GPUS, lost)
        await until(lambda: made.rtt(unique) == 80.0)
        await until(lambda: made.gpus.health_of(host, (), now_ms()).state == "lost")
        assert made.tail.refused == 0


async def test_what_cant_be_used_is_counted_and_stops_nothing(kafka: Any, log: Log, unique: str) -> None:
    async with following(kafka.bootstrap) as made:
        await until(lambda: made.tail.caught_up)
        before = made.tail.refused
        await log.producer.send_and_wait(LINKS.name, b"{", headers=headers_for(LinkProbe), partition=0)
        await send(log, LINKS, probe(unique, 1.0, now_ms() + 60_000))
        await send(log, LINKS, probe(unique, -1.0, now_ms()))
        await send(log, LINKS, probe(unique, 90.0, now_ms()))
        await until(lambda: made.rtt(unique) == 90.0)
        assert made.tail.refused - before == 3
