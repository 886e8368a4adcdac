"""Health says why, and only stage two's own stalls turn it red."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from infra.ports import free_port
from schemas.topics import OUTCOMES, ROLLUPS
from streams.faust_tables import Settler
from streams.health import Health, Metrics, serve_health
from streams.lag import EVERY_S, UNRECOVERED_MS, LagWatch, OffsetProbe
from streams.options import StreamsOptions
from streams.worker import _guard


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


class Watched:
    """A lag watch whose clock and offsets the test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.now_ms = 0.0
        monkeypatch.setattr("streams.lag.monotonic_ms", lambda: self.now_ms)
        self.ownership = SimpleNamespace(partitions=frozenset({0}), recovered=True, turn=1)
        self.settler, self.health = Settler(list), Health()
        self.combiner: Any = SimpleNamespace(committed={SOURCE: 0})
        stage: Any = SimpleNamespace(settler=self.settler, ownership=self.ownership)
        self.watch = LagWatch(
            OffsetProbe("127.0.0.1:1"),
            self.combiner,
            {"capacity": stage},
            StreamsOptions("127.0.0.1:1", "w", folder, **changes),
            self.health,
        )

    def look(self, rollups: int, source: int = 0) -> None:
        self.watch._look({PLACE: rollups, SOURCE: source})

    def problems(self, after_ms: float) -> list[str]:
        self.now_ms += after_ms
        return sorted(self.health.problems())


PLACE, SOURCE = (ROLLUPS.name, 0), (OUTCOMES.name, 0)
LONG_MS, SHORT_MS = 11_000.0, 9_000.0


def test_a_stall_is_records_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Watched(tmp_path, monkeypatch)
    at.settler.settled[PLACE] = 9
    for end, settled, found in (
        (12, 9, ["capacity_lag"]),
        (12, 10, ["capacity_lag"]),
        (12, 11, []),
        (14, 11, ["capacity_lag"]),
        (14, 13, []),
    ):
        at.settler.settled[PLACE] = settled
        at.look(end)
        assert at.problems(SHORT_MS) == []
        at.look(end)
        assert at.problems(2_000.0) == found


def test_a_stall_from_the_first_record_after_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was settled, so there is no offset to compare; what came since the takeover must move it."""
    at = Watched(tmp_path, monkeypatch)
    at.look(40)
    assert at.problems(LONG_MS) == []  # what was there may all have been settled by a predecessor
    at.look(41)
    at.now_ms += SHORT_MS
    at.look(45)
    assert at.problems(2_000.0) == ["capacity_lag"]
    at.ownership.turn += 1
    at.look(45)
    assert at.problems(LONG_MS) == []


def test_partitions_of_others_and_standing_by_are_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Watched(tmp_path, monkeypatch)
    at.ownership.partitions = frozenset({3})
    at.combiner.committed = {}
    for end in (5, 9):
        at.look(end, end)
        assert at.problems(LONG_MS) == []


def test_stage_one_is_compared_with_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Watched(tmp_path, monkeypatch)
    at.look(0, source=7)
    at.now_ms += SHORT_MS
    at.look(0, source=9)
    assert at.problems(2_000.0) == ["combiner_lag"]
    assert f"{SOURCE[0]}:0 has records, but the combiner" in at.health.problems()["combiner_lag"]
    at.combiner.committed = {SOURCE: 9}
    at.look(0, source=9)
    assert at.problems(0.0) == []
    at.combiner.committed = None
    at.look(0, source=9)
    assert at.problems(SHORT_MS) == []
    at.look(0, source=9)
    assert at.problems(2_000.0) == ["combiner_lag"]


def test_tables_that_never_recover_and_a_watch_that_sees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Watched(tmp_path, monkeypatch)
    at.ownership.recovered = False
    at.look(0)
    at.now_ms += UNRECOVERED_MS
    at.look(0)
    assert at.problems(1.0) == ["capacity_lag"]
    at.ownership.recovered = True
    at.look(0)
    assert at.problems(0.0) == []
    assert at.problems(15_000.0) == ["lag"]


def test_a_plain_start_finds_a_stall_within_15_s(tmp_path: Path) -> None:
    """A look just before the first record that is not read, the next one that sees it, the stall time."""
    options = StreamsOptions("127.0.0.1:1", "w", tmp_path)
    assert options.stall_ms + EVERY_S * 1000.0 <= 13_000.0


async def test_a_part_that_ends_is_a_failure_and_the_first_reason_stays() -> None:
    health = Health()

    async def ends() -> None:
        await asyncio.sleep(0)

    async def crashes() -> None:
        raise ValueError("no such file")

    await _guard("publisher", ends(), health)
    await _guard("combiner", crashes(), health)
    health.fail("combiner", "something that followed from it")
    assert health.problems() == {
        "publisher": "The publisher ended by itself; it should run as long as the worker.",
        "combiner": "The combiner crashed: ValueError: no such file",
    }
