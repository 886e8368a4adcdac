"""The agent against a real Kafka and small engines: rows and envelopes, outage, restart, move, removal."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiokafka import AIOKafkaConsumer

from infra.kafka.embedded import EmbeddedKafka
from minds.rows import Change
from schemas.codec import Decoded, decode_events
from schemas.topics import ALERTS, ENDPOINTS, TELEMETRY, Topic
from sources import outbox
from sources.agent import AgentSettings, SourceAgent
from sources.drift import alert_id
from sources.http import application
from transport.admin import ensure_topics
from transport.errors import BrokerUnavailable
from transport.partitioning import partition_of
from transport.table_reader import TableReader

Capture = Callable[[str], bytes]


class Broker(Protocol):
    """What these tests need of the fixture."""

    bootstrap: str


class Engine:
    """An engine that answers with whatever page it holds; it can go away and come back on its port."""

    def __init__(self, page: bytes) -> None:
        self.page = page
        self.health = 200
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=self.page, content_type="text/plain")

        async def health(_: web.Request) -> web.Response:
            return web.Response(status=self.health)

        app = web.Application()
        app.add_routes([web.get("/metrics", metrics), web.get("/health", health)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


class Log:
    """What the agent wrote, as independent readers see it."""

    def __init__(self, bootstrap: str, agent_id: str) -> None:
        self.changes: list[Change] = []
        self.table = TableReader(bootstrap, [ENDPOINTS, ALERTS], on_change=self._note)
        self.envelopes: list[Decoded] = []
        self._agent_id = agent_id
        self._consumer = AIOKafkaConsumer(
            TELEMETRY.name, bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
        )

    def _note(self, _: Topic, change: Change) -> None:
        self.changes.append(change)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Log]:
        await self.table.start()
        await self._consumer.start()
        task = asyncio.create_task(self._read())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._consumer.stop()
            await self.table.stop()

    async def _read(self) -> None:
        async for record in self._consumer:
            if record.key == self._agent_id.encode():
                self.envelopes.append(decode_events(TELEMETRY, record.headers, record.value))

    def events(self, instance: str) -> list[Any]:
        return [event for one in self.envelopes for event in one.events if event.instance == instance]

    def row(self, instance: str) -> Any:
        return self.table.view(ENDPOINTS).row(instance)

    def alert(self, instance: str, reading: str) -> Any:
        return self.table.view(ALERTS).row(alert_id(instance, reading))


async def _until(condition: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {within_s:g} s: {what}")


def _write(path: Path, *endpoints: dict[str, object]) -> None:
    path.write_text(yaml.safe_dump({"endpoints": list(endpoints)}))


@pytest.mark.kafka
async def test_an_engines_life_in_rows_and_envelopes(kafka: Broker, capture: Capture, tmp_path: Path) -> None:
    tag = uuid.uuid4().hex[:8]
    pool = f"tiny-{tag}@1"
    elsewhere = next(
        name
        for name in (f"tiny-{tag}@{number}" for number in range(2, 100))
        if partition_of(name, ENDPOINTS.partitions) != partition_of(pool, ENDPOINTS.partitions)
    )
    engine = Engine(capture("after"))
    await engine.start()
    me: dict[str, object] = {
        "instance": f"eu-{tag}",
        "engine": "vllm",
        "url": f"http://127.0.0.1:{engine.port}",
        "region": "eu",
        "pools": [pool],
    }
    gone = me | {"instance": f"gone-{tag}", "url": "http://127.0.0.1:1"}
    config = tmp_path / "endpoints.yaml"
    _write(config, me, gone)
    await ensure_topics(kafka.bootstrap, (ENDPOINTS, TELEMETRY, ALERTS))
    settings = AgentSettings(
        kafka.bootstrap, config, agent_id=f"source-{tag}", interval_ms=50, config_poll_s=0.1
    )
    agent = SourceAgent(settings)
    instance = f"eu-{tag}"
    async with Log(kafka.bootstrap, settings.agent_id).open() as log:
        await agent.start()
        try:
            await _until(lambda: log.row(instance), "a row of the engine")
            await _until(lambda: log.row(f"gone-{tag}"), "a row of the engine that is not there")
            row = log.row(instance)
            first_boot = f"b{1_795_980_983_710:x}"
            assert (row.reachable, row.boot, row.region, row.pools) == (True, first_boot, "eu", [pool])
            assert (row.epoch, row.valid_for_ms) == (agent.started_at_ms, 15_000.0)
            assert (log.row(f"gone-{tag}").reachable, log.row(f"gone-{tag}").boot) == (False, "unseen")
            await _until(lambda: len(log.events(instance)) >= 3, "telemetry")
            event = log.events(instance)[0]
            assert event.counters.generation_tokens_total.value == 90_058
            assert event.gauges.kv_usage_ratio.quality == "fresh"
            assert agent.unready() == []

            engine.health = 503
            await _until(lambda: not log.row(instance).reachable, "health 503 taken for away")
            engine.health = 200
            await _until(lambda: log.row(instance).reachable, "well again")
            assert log.row(instance).boot == first_boot

            await engine.stop()
            await _until(lambda: not log.row(instance).reachable, "the outage in the row")
            await _until(lambda: not log.events(instance)[-1].reachable, "the outage in telemetry")
            assert log.events(instance)[-1].gauges.requests_running.value is None
            engine.page = capture("restart")
            await engine.start()
            await _until(lambda: log.row(instance).boot != first_boot, "a new boot")
            row = log.row(instance)
            assert (row.reachable, row.boot) == (True, f"b{1_795_981_719_150:x}")
            await _until(lambda: log.events(instance)[-1].boot == row.boot, "telemetry of the new boot")

            _write(config, me | {"pools": [elsewhere]}, gone)
            await _until(lambda: log.row(instance).pools == [elsewhere], "the move to another home pool")
            assert log.row(instance).boot == row.boot
            (seen,) = [one for one in log.table.view(ENDPOINTS).rows() if one.row.instance == instance]
            assert seen.partition == partition_of(elsewhere, ENDPOINTS.partitions)

            _write(config, me | {"pools": [elsewhere]})
            await _until(lambda: log.row(f"gone-{tag}") is None, "the tombstone")
            assert log.row(instance) is not None
        finally:
            await agent.stop()
            await engine.stop()
        puts = [change.row for change in log.changes if change.kind == "put" and tag in change.key]
        assert {row.epoch for row in puts} == {agent.started_at_ms}
        assert len({row.version for row in puts}) == len(puts)
        assert ("removed", f"gone-{tag}") in {(change.kind, change.key) for change in log.changes}
        assert [one.seq for one in log.envelopes] == list(range(len(log.envelopes)))
        assert {one.boot for one in log.envelopes} == {agent.boot}


@pytest.mark.kafka
async def test_the_agents_own_http(kafka: Broker, capture: Capture, tmp_path: Path) -> None:
    tag = uuid.uuid4().hex[:8]
    engine = Engine(capture("idle").replace(b"vllm:num_requests_waiting{", b"vllm:queued{"))
    await engine.start()
    config = tmp_path / "endpoints.yaml"
    _write(
        config,
        {
            "instance": f"eu-{tag}",
            "engine": "vllm",
            "url": f"http://127.0.0.1:{engine.port}",
            "region": "eu",
            "pools": [f"tiny-{tag}@1"],
        },
    )
    agent = SourceAgent(
        AgentSettings(kafka.bootstrap, config, agent_id=f"source-{tag}", interval_ms=50, config_poll_s=0.1)
    )
    runner = web.AppRunner(application(agent))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def get(path: str) -> tuple[int, str]:
        async with session.get(url + path) as answer:
            return answer.status, await answer.text()

    async with aiohttp.ClientSession() as session:
        try:
            assert (await get("/healthz"))[0] == 200
            status, text = await get("/readyz")
            assert status == 503
            assert "has not started" in text
            await agent.start()
            await _until(lambda: not agent.unready(), "ready")
            status, text = await get("/readyz")
            assert status == 200
            assert f'"eu-{tag}": true' in text
            status, text = await get("/metrics")
            assert status == 200
            assert f'tokenfleet_source_problems{{instance="eu-{tag}",kind="missing"}} 1.0' in text
            assert f'tokenfleet_source_endpoint_reachable{{instance="eu-{tag}"}} 1.0' in text
            config.write_text("endpoints: [")
            await _until(lambda: b"tokenfleet_source_config_ok 0.0" in agent.exposition(), "a broken list")
            assert agent.unready() == [], "a broken list does not stop the watching of the last good one"
        finally:
            await agent.stop()
            await runner.cleanup()
            await engine.stop()


def _llama(tag: str, engine: Engine) -> dict[str, object]:
    return {
        "instance": f"llama-{tag}",
        "engine": "llama.cpp",
        "url": f"http://127.0.0.1:{engine.port}",
        "region": "eu",
        "pools": [f"tiny-{tag}@1"],
    }


@pytest.mark.kafka
async def test_an_agent_that_restarts_goes_on_where_it_was(
    kafka: Broker, llama_cpp_page: bytes, tmp_path: Path
) -> None:
    """No process start is told: the boot is the one of the row, and what left the list meanwhile goes."""
    tag = uuid.uuid4().hex[:8]
    engine = Engine(llama_cpp_page)
    await engine.start()
    me, config = _llama(tag, engine), tmp_path / "endpoints.yaml"
    other = me | {"instance": f"left-{tag}", "pools": [f"other-{tag}@1"]}
    foreign = me | {"instance": f"foreign-{tag}"}
    await ensure_topics(kafka.bootstrap, (ENDPOINTS, TELEMETRY, ALERTS))
    settings = AgentSettings(
        kafka.bootstrap, config, agent_id=f"source-{tag}", interval_ms=50, config_poll_s=0.1
    )
    foreign_config = tmp_path / "foreign.yaml"
    _write(foreign_config, foreign)
    async with Log(kafka.bootstrap, settings.agent_id).open() as log:
        try:
            _write(config, me, other)
            agent = SourceAgent(settings)
            await agent.start()
            await _until(lambda: log.row(f"llama-{tag}") and log.row(f"left-{tag}"), "both rows")
            engine.page = llama_cpp_page.replace(b"llamacpp:requests_deferred 1", b"llamacpp:deferred 1")
            await _until(lambda: log.alert(f"left-{tag}", "requests_waiting"), "the drift alerts")
            await _until(lambda: log.alert(f"llama-{tag}", "requests_waiting"), "the drift alerts")
            assert log.alert(f"llama-{tag}", "requests_waiting").state == "firing"
            assert "llamacpp:requests_deferred" in log.alert(f"llama-{tag}", "requests_waiting").summary
            await agent.stop()
            before = log.row(f"llama-{tag}")
            assert before.source == settings.agent_id
            stranger = SourceAgent(AgentSettings(kafka.bootstrap, foreign_config, agent_id=f"other-{tag}"))
            await stranger.start()
            await _until(lambda: log.row(f"foreign-{tag}"), "another agent's row")
            await stranger.stop()

            _write(config, me)
            engine.page = llama_cpp_page
            agent = SourceAgent(settings)
            await agent.start()
            try:
                await _until(lambda: log.row(f"llama-{tag}").epoch == agent.started_at_ms, "the new row")
                after = log.row(f"llama-{tag}")
                assert (after.boot, after.boot_started_at_ms) == (before.boot, before.boot_started_at_ms)
                await _until(lambda: log.row(f"left-{tag}") is None, "the tombstone of what left the list")
                assert log.row(f"foreign-{tag}") is not None, "another agent's rows are its own"
                mine = [f"llama-{tag}", f"left-{tag}"]
                await _until(
                    lambda: {log.alert(one, "requests_waiting").state for one in mine} == {"resolved"},
                    "the alerts are resolved",
                )
            finally:
                await agent.stop()
        finally:
            await engine.stop()


@pytest.mark.kafka
async def test_a_broker_that_goes_away_and_comes_back(
    fresh_kafka: EmbeddedKafka, llama_cpp_page: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = uuid.uuid4().hex[:8]
    engine = Engine(llama_cpp_page)
    await engine.start()
    config = tmp_path / "endpoints.yaml"
    _write(config, *[_llama(tag, engine) | {"instance": f"llama-{n}-{tag}"} for n in range(4)])
    settings = AgentSettings(
        fresh_kafka.bootstrap, config, agent_id=f"source-{tag}", interval_ms=20, buffer_events=16
    )
    monkeypatch.setattr(outbox, "CONGESTED_EVENTS", 100)
    agent = SourceAgent(settings)
    try:
        await agent.start()
        await _until(lambda: not agent.unready(), "ready")
        await asyncio.to_thread(fresh_kafka.stop)
        await _until(lambda: b"tokenfleet_source_rollups_held 16.0" in agent.exposition(), "a full buffer")
        assert any("broker does not take" in reason for reason in agent.unready())
        before = {watch.config.instance: watch.attempts for watch in agent.watches()}
        await _until(lambda: b"tokenfleet_source_events_dropped 0.0" not in agent.exposition(), "drops")
        assert all(watch.attempts > before[watch.config.instance] for watch in agent.watches())
        await asyncio.to_thread(fresh_kafka.start)
        await _until(lambda: b"tokenfleet_source_rollups_held 0.0" in agent.exposition(), "all sent", 60)
        await _until(lambda: not agent.unready(), "ready again", 60)
        async with Log(fresh_kafka.bootstrap, settings.agent_id).open() as log:
            await _until(lambda: len(log.envelopes) > 3, "envelopes")
            await asyncio.sleep(0.5)
            seqs = [one.seq for one in log.envelopes if one.seq is not None]
            assert seqs == sorted(set(seqs)), "in order, each once"
            assert seqs == list(range(len(seqs))), "no gap: what was dropped had no number yet"
    finally:
        await agent.stop()
        await engine.stop()


async def test_no_broker_is_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "endpoints.yaml"
    _write(config)
    agent = SourceAgent(AgentSettings("127.0.0.1:1", config, broker_timeout_s=0.5))
    with pytest.raises(BrokerUnavailable, match="No Kafka broker answered"):
        await agent.start()
    await agent.stop()
