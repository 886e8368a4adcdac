"""Alerts that fire, beat and end, and calls that are awaited for a bounded time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sources.gpu.alerts import HEARTBEAT_MS, GpuAlerts
from sources.gpu.bounded import BoundedThread, Silent
from sources.gpu.config import GpusConfig

NOW_MS = 1_795_981_800_000


def test_an_alert_fires_once_beats_and_ends() -> None:
    alerts = GpuAlerts("node-1")
    (row,) = alerts.fire("GPU-1", "critical", "It fell off the bus.", NOW_MS)
    assert (row.alert_id, row.subject, row.state, row.severity, row.since_ms) == (
        ("gpu/node-1/GPU-1", "node-1", "firing", "critical", NOW_MS)
    )
    assert row.summary == "node-1: It fell off the bus."
    assert alerts.fire("GPU-1", "critical", "It fell off the bus.", NOW_MS + 1000) == []
    (beat,) = alerts.fire("GPU-1", "critical", "It fell off the bus.", NOW_MS + HEARTBEAT_MS)
    assert (beat.since_ms, beat.as_of_ms) == (NOW_MS, NOW_MS + HEARTBEAT_MS)
    (news,) = alerts.fire("GPU-1", "critical", "It is silent.", NOW_MS + HEARTBEAT_MS + 1)
    assert news.summary == "node-1: It is silent."
    assert alerts.firing == {"GPU-1": "It is silent."}
    (over,) = alerts.resolve("GPU-1", "It answers.", NOW_MS + 90_000)
    assert (over.state, over.severity, over.since_ms) == ("resolved", "critical", NOW_MS)
    assert alerts.resolve("GPU-1", "It answers.", NOW_MS + 91_000) == []
    assert alerts.firing == {}


def test_the_first_good_look_ends_what_an_earlier_agent_may_have_left_firing() -> None:
    alerts = GpuAlerts("node-1")
    (row,) = alerts.resolve("GPU-1", "It answers.", NOW_MS)
    assert (row.state, row.severity) == ("resolved", "info")
    assert alerts.resolve("GPU-1", "It answers.", NOW_MS) == []


def test_long_names_still_make_rows() -> None:
    (row,) = GpuAlerts("h" * 100).fire("G" * 120, "info", "x" * 900, NOW_MS)
    assert len(row.alert_id) == 200
    assert len(row.summary) == 500


async def test_a_call_that_hangs_is_silent_and_the_next_ones_at_once() -> None:
    thread, release = BoundedThread("test"), threading.Event()
    assert await thread.call(lambda: 7, 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 / 0, 5.0)
    with pytest.raises(Silent):
        await thread.call(release.wait, 0.05)
    assert thread.stuck
    with pytest.raises(Silent):
        await thread.call(lambda: 8, 60.0)
    release.set()
    async with asyncio.timeout(20):
        while thread.stuck:
            await asyncio.sleep(0.01)
    assert await thread.call(lambda: 9, 5.0) == 9
    thread.close()


def test_a_host_has_a_name_that_is_an_identifier(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpusConfig(host="node-1").host_name == "node-1"
    monkeypatch.setattr("socket.gethostname", lambda: "my node_7.local!")
    assert GpusConfig().host_name == "my-node_7.local-"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert GpusConfig().host_name == "host"
