"""The agent's parts besides scraping: what the file says, what is missing, and all three against Kafka."""

from __future__ import annotations

import asyncio
import builtins
import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
import yaml
from aiohttp import web
from aiokafka import AIOKafkaConsumer
from prometheus_client import CollectorRegistry

from infra.ports import free_port
from minds.prefix_keys import SALT_VARIABLE, BlockHasher, Salt
from schemas.codec import decode_events
from schemas.routers import RouterRow
from schemas.topics import ALERTS, BY_NAME, GPUS, KV, LINKS, ROUTERS, Topic
from sources.agent import AgentSettings, SourceAgent
from sources.discovery.config import ConfigError, SourceConfig, parse_config
from sources.extras import Extras
from sources.gpu.config import GpusConfig
from transport.clock import now_ms
from transport.producer import EventProducer, RowProducer, start_producer
from transport.table_reader import TableReader

SALT_TEXT = "s1:" + "ab" * 32
ENGINE = Path(__file__).parent / "kv_events" / "zmq_engine.py"


class Broker(Protocol):
    """What these tests need of the fixture."""

    bootstrap: str


class Nowhere:
    """Takes events and alerts and keeps none."""

    def emit(self, topic: Topic, event: Any) -> None:
        """An event."""

    def put(self, row: Any, home: str) -> None:
        """An alert."""


def config(**fields: Any) -> SourceConfig:
    return parse_config(yaml.safe_dump({"endpoints": [], **fields}), "test.yaml")


def engine(**fields: Any) -> dict[str, Any]:
    return {
        "instance": "eu-0",
        "engine": "vllm",
        "url": "http://127.0.0.1:1",
        "region": "eu",
        "pools": ["tiny@1"],
        "tokenizer": "tiny",
        "kv_events": {"endpoint": "tcp://{host}:1"},
    } | fields


def test_the_file_says_which_parts_run() -> None:
    assert config().gpus_config is None
    assert config(gpus=True).gpus_config == GpusConfig()
    assert config(gpus={"host": "node-1"}).gpus_config == GpusConfig(host="node-1")
    assert config(links=[{"from_region": "eu", "to_region": "us"}]).links[0].urls == []
    assert config(endpoints=[engine()]).endpoints[0].kv_events is not None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus": {"interval_ms": 1}}, "gpus"),
        ({"links": [{"from_region": "eu", "to_region": "eu"}]}, "another region"),
        ({"links": [{"from_region": "eu", "to_region": "us"}] * 2}, "listed twice"),
        ({"endpoints": [engine(tokenizer=None)]}, "hashed by tokenizer"),
        ({"endpoints": [engine(kv_events={"endpoint": "http://x"})]}, "tcp://HOST:PORT"),
    ],
)
def test_what_can_not_be_is_a_sentence(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(**fields)


async def started(found: SourceConfig) -> Extras:
    extras = Extras("127.0.0.1:1", lambda _: None, CollectorRegistry())
    nowhere = Nowhere()
    await extras.start(cast(EventProducer, nowhere), nowhere)
    await extras.apply(found, found.endpoints)
    return extras


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "need the fleet's prefix salt"), ("nonsense", "can't be used"), (b"\xff", "not UTF-8")],
)
async def test_a_salt_that_is_missing_or_bad_is_said_and_never_shown(
    text: str | bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SALT_VARIABLE, raising=False)
    fields: dict[str, Any] = {"endpoints": [engine()]}
    if text is not None:
        file = tmp_path / "salt"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        fields["prefix_salt_file"] = str(file)
    extras = await started(config(**fields))
    reasons = " ".join(extras.unready())
    assert words in reasons
    assert "KV events of eu-0 are not followed" in reasons
    assert "nonsense" not in reasons
    await extras.stop()


async def test_a_salt_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    extras = await started(config(endpoints=[engine()], prefix_salt_file=str(tmp_path / "no")))
    assert "can't be read: No such file" in extras.unready()[0]
    await extras.stop()


async def test_without_the_package_kv_events_are_off_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without_zmq(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "zmq":
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith(("sources.kv_events.s", "zmq"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_zmq)
    extras = await started(
        config(
            endpoints=[engine()],
            links=[{"from_region": "eu", "to_region": "us", "urls": ["http://127.0.0.1:1"]}],
        )
    )
    assert extras.unready() == [
        "KV events need the package pyzmq; pip install 'tokenfleet[sources]' brings it."
    ]
    await extras.stop()


async def _until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(40):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within 40 s: {what}")


@pytest.mark.kafka
async def test_all_parts_of_an_agent_on_kafka(
    kafka: Broker, tmp_path: Path, capture: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV events of an engine, a host without a GPU, and a link to a router that the topic lists."""
    tag = uuid.uuid4().hex[:8]
    monkeypatch.setenv(SALT_VARIABLE, SALT_TEXT)
    page = capture("idle")

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=page if request.path == "/metrics" else b"{}", content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get(path, answer) for path in ("/metrics", "/health", "/healthz")])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    events_port, replay_port = free_port(), free_port()
    publisher = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ENGINE),
        f"tcp://127.0.0.1:{events_port}",
        f"tcp://127.0.0.1:{replay_port}",
        "bind",
        "0",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert publisher.stdin is not None
    file = tmp_path / "source.yaml"
    sockets = {"endpoint": f"tcp://{{host}}:{events_port}", "replay": f"tcp://{{host}}:{replay_port}"}
    parts = {
        "endpoints": [engine(instance=f"eu-{tag}", url=url, kv_events=sockets)],
        "gpus": {"host": f"node-{tag}", "interval_ms": 100},
        "links": [{"from_region": f"eu-{tag}", "to_region": f"us-{tag}", "interval_ms": 100}],
    }
    file.write_text(yaml.safe_dump(parts))
    agent = SourceAgent(
        AgentSettings(kafka.bootstrap, file, agent_id=f"source-{tag}", interval_ms=50, config_poll_s=0.1)
    )
    said: dict[str, list[Any]] = {KV.name: [], LINKS.name: [], GPUS.name: []}
    alerts = TableReader(kafka.bootstrap, [ALERTS])
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", group_id=None
    )

    async def read() -> None:
        async for record in consumer:
            if record.key == f"source-{tag}".encode():
                decoded = decode_events(BY_NAME[record.topic], record.headers, record.value)
                said[record.topic] += decoded.events

    reading: asyncio.Task[None] | None = None
    producer = None
    try:
        await agent.start()
        consumer.subscribe([KV.name, LINKS.name, GPUS.name])
        await consumer.start()
        await alerts.start()
        reading = asyncio.create_task(read())
        producer = await start_producer(kafka.bootstrap)
        row = RouterRow(
            as_of_ms=now_ms(),
            valid_for_ms=60_000.0,
            epoch=1,
            version=1,
            router=f"router-{tag}",
            boot="b",
            boot_started_at_ms=now_ms(),
            entry_region=f"us-{tag}",
            url=url,
        )
        await (await RowProducer(producer).put(ROUTERS, row, partition_key=row.router))
        tokens = list(range(512))
        stored = {
            "type": "BlockStored",
            "block_hashes": list(range(16)),
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": 32,
        }
        publisher.stdin.write(json.dumps({"events": [stored]}).encode() + b"\n")
        await _until(lambda: [one for one in said[KV.name] if one.kind == "stored"], "the stored block")
        (told,) = [one for one in said[KV.name] if one.kind == "stored"]
        assert (told.instance, told.pool, told.boot) == (
            (f"eu-{tag}", "tiny@1", agent.watches()[0].boot.name)  # type: ignore[union-attr]
        )
        assert told.prefix.blocks == BlockHasher("tiny", Salt.parse(SALT_TEXT)).key_of(tokens).blocks
        await _until(
            lambda: [one for one in said[LINKS.name] if one.rtt_ms.value is not None], "a round trip"
        )
        assert {(one.from_region, one.to_region) for one in said[LINKS.name]} == {(f"eu-{tag}", f"us-{tag}")}
        alert = f"gpu/node-{tag}/nvml"
        await _until(lambda: alerts.view(ALERTS).row(alert), "the GPUs, or why there are none")
        assert (alerts.view(ALERTS).row(alert).state == "firing") or said[GPUS.name]
        assert agent.unready() == []
        assert b"tokenfleet_source_kv_fleet_blocks" in agent.exposition()

        def running() -> set[str]:
            return {task.get_name() for task in asyncio.all_tasks()}

        ended = {f"link-us-{tag}", "gpus"}
        assert ended <= running()
        file.write_text(yaml.safe_dump(parts | {"links": [], "gpus": False}))
        await _until(lambda: not ended & running(), "an end of the parts that the file lost")
    finally:
        await agent.stop()
        publisher.kill()
        await publisher.wait()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await consumer.stop()
        await alerts.stop()
        if producer is not None:
            await producer.stop()
        await runner.cleanup()
