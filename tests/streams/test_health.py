"""Health says why, and only stage two's own stalls turn it red."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from infra.ports import free_port
from schemas.topics import ROLLUPS
from streams.faust_tables import Settler
from streams.health import Health, Metrics, serve_health
from streams.lag import LagWatch, OffsetProbe
from streams.options import StreamsOptions


async def test_the_pages() -> None:
    health, metrics, port = Health(), Metrics(), free_port()
    said: list[str | None] = [None]
    health.add("part", live=lambda: said[0], ready=lambda: "Not yet.")
    runner = await serve_health(health, metrics, "127.0.0.1", port)

    async def get(path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    try:
        assert (await get("/healthz"))[0] == 200
        status, body = await get("/readyz")
        assert (status, "Not yet." in body) == (503, True)
        said[0] = "It stalls."
        status, body = await get("/healthz")
        assert (status, "It stalls." in body) == (503, True)
        said[0] = None
        health.fail("part", "It broke for good.")
        assert "It broke for good." in (await get("/healthz"))[1]
        metrics.lost.inc()
        assert "tokenfleet_streams_lost_outcomes_total 1.0" in (await get("/metrics"))[1]
    finally:
        await runner.cleanup()


def event(offset: int, acked: list[int]) -> SimpleNamespace:
    message = SimpleNamespace(topic=ROLLUPS.name, partition=0, offset=offset)
    return SimpleNamespace(message=message, ack=lambda: acked.append(offset))


async def test_events_are_acknowledged_after_the_writes_and_never_across_a_rebalance() -> None:
    acked: list[int] = []
    rebalance = False

    def collect() -> list:
        assert acked == []
        if rebalance:
            settler.drop()
        return []

    settler = Settler(collect)
    settler.note(event(5, acked))
    await settler.settle()
    assert (acked, settler.settled) == ([5], {(ROLLUPS.name, 0): 5})
    acked.clear()
    rebalance = True
    settler.note(event(6, acked))
    await settler.settle()
    assert (acked, settler.settled) == ([], {})


def test_a_stall_is_records_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("streams.lag.monotonic_ms", lambda: clock[0])
    settler, health = Settler(list), Health()
    options = StreamsOptions("127.0.0.1:1", "w", tmp_path)
    watch = LagWatch(OffsetProbe("127.0.0.1:1"), {"capacity": settler}, options, health)
    place = (ROLLUPS.name, 0)
    watch._look({place: 10})
    settler.settled[place] = 9
    for end, settled, problem in ((12, 9, False), (12, 9, True), (12, 11, False), (14, 11, False)):
        settler.settled[place] = settled
        watch._look({place: end})
        clock[0] += 10_000.0
        assert bool(health.problems()) == problem
