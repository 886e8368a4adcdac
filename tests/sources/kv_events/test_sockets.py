"""Streams over real sockets from a process of its own: drops, restarts, ranks, damage, who connects."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from infra.ports import free_port
from minds.prefix_keys import BlockHasher, Salt
from schemas.caches import KvEvent
from schemas.topics import KV, Topic
from sources.boots import Boot
from sources.kv_events.config import KvEventsConfig
from sources.kv_events.service import KvEventsSource
from transport.producer import EventProducer

SALT = Salt("s1", bytes(range(32)))
HASHER = BlockHasher("tiny", SALT)
SCRIPT = Path(__file__).with_name("zmq_engine.py")


class Events:
    """Takes events as the producer would, and folds them as a reader does."""

    def __init__(self) -> None:
        self.all: list[KvEvent] = []
        self.blocks: dict[tuple[str, int], set[str]] = {}

    def emit(self, topic: Topic, event: KvEvent) -> None:
        assert topic is KV
        self.all.append(event)
        held = self.blocks.setdefault((event.boot, event.rank), set())
        if event.kind == "cleared":
            held.clear()
        elif event.prefix is not None:
            (held.update if event.kind == "stored" else held.difference_update)(event.prefix.blocks)


@dataclass
class Endpoint:
    """What the service needs of an endpoint."""

    kv_events: KvEventsConfig | None
    instance: str = "eu-0"
    url: str = "http://10.0.0.7:8000"
    pools: list[str] = field(default_factory=lambda: ["tiny@1"])
    tokenizer: str | None = "tiny"


class Engine:
    """The publishing process."""

    def __init__(self, endpoint: str, replay: str, how: str = "bind", rank: int = 0) -> None:
        self._arguments = [endpoint, replay, how, str(rank)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def say(self, **command: Any) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return int(await asyncio.wait_for(self._process.stdout.readline(), 20))

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def following(
    config: KvEventsConfig, boot: Callable[[str], Boot | None] = lambda _: Boot("b1", 1_600_000_000_000)
) -> AsyncIterator[tuple[KvEventsSource, Events]]:
    source, events = KvEventsSource(SALT, boot, look_after_s=0.2), Events()
    await source.start(cast(EventProducer, events))
    await source.apply([Endpoint(config)])
    try:
        yield source, events
    finally:
        await source.stop()


def stored(name: int, tokens: list[int], parent: int | None = None, size: int = 32) -> dict[str, Any]:
    count = len(tokens) // size
    return {
        "type": "BlockStored",
        "block_hashes": [name + index for index in range(count)],
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(*names: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU"}


def hashes(*prompts: list[int]) -> set[str]:
    return {block for prompt in prompts for block in HASHER.key_of(prompt).blocks}


async def _until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within 30 s: {what}")


def _pair() -> tuple[str, str]:
    return f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"


A, B, C = [1] * 512, [2] * 512, [3] * 512
BIG = 2**63 + 1000


async def test_drops_and_a_restart_without_a_clear() -> None:
    endpoint, replay = _pair()
    engine, boots = Engine(endpoint, replay), [Boot("b1", 1_600_000_000_000)]
    await engine.start()
    try:
        await engine.say(events=[stored(BIG, A)])  # before anyone listens
        async with following(
            KvEventsConfig(endpoint=endpoint, replay=replay, topic="kv-events"), lambda _: boots[0]
        ) as (source, events):
            await _until(lambda: events.blocks.get(("b1", 0)) == hashes(A), "what was said before")
            await engine.say(events=[stored(2000, B[:256])], drop=True)
            await engine.say(events=[stored(2008, B[256:], parent=2007)])
            await _until(lambda: events.blocks["b1", 0] == hashes(A, B), "a gap filled, half a block in each")
            await engine.say(events=[removed(2003)], drop=True)
            await _until(lambda: events.blocks["b1", 0] == hashes(A), "a lost last batch, found by looking")
            (_, stream) = next(iter(source.streams()))
            (follower,) = stream.followers.values()
            counts = follower.position.counts
            assert (counts.gaps_lost, counts.restarts, follower.whole) == (0, 0, True)

            await engine.kill()
            await engine.start()
            await engine.say(events=[stored(3000, C)])
            await _until(lambda: counts.restarts == 1, "the restart seen in the stream")
            assert events.blocks["b1", 0] == set()
            boots[0] = Boot("b2", 1_600_000_000_001)
            await _until(lambda: events.blocks.get(("b2", 0)) == hashes(C), "the new life under its boot")

            registry = CollectorRegistry()
            registry.register(source)
            text = generate_latest(registry).decode()
            assert 'tokenfleet_source_kv_turns_total{instance="eu-0",kind="restart",rank="0"} 1.0' in text
            assert 'tokenfleet_source_kv_fleet_blocks{instance="eu-0",rank="0"} 1.0' in text
        said = " ".join(event.model_dump_json() for event in events.all)
        assert "token_ids" not in said
        assert {event.prefix.salt_id for event in events.all if event.prefix} == {"s1"}
    finally:
        await engine.kill()


async def test_without_a_replay_socket_a_gap_empties_the_view() -> None:
    endpoint, replay = _pair()
    engine = Engine(endpoint, replay)
    await engine.start()
    try:
        async with following(KvEventsConfig(endpoint=endpoint)) as (source, events):
            name = 0
            while not events.blocks.get(("b1", 0)):  # until the subscription has reached the engine
                await engine.say(events=[stored(name := name + 100, A)])
                await asyncio.sleep(0.05)
            (_, stream) = next(iter(source.streams()))
            (follower,) = stream.followers.values()
            await engine.say(events=[stored(5000, B)], drop=True)
            await engine.say(events=[stored(6000, C)])
            await _until(lambda: events.blocks["b1", 0] == hashes(C), "only what is sure")
            assert follower.position.counts.gaps_lost >= 1
            assert not follower.whole
            await engine.say(events=[{"type": "AllBlocksCleared"}])
            await _until(lambda: follower.whole, "a clear makes all known")
            assert events.blocks["b1", 0] == set()
    finally:
        await engine.kill()


async def test_a_batch_that_nobody_can_read_is_a_loss_and_not_a_crash() -> None:
    endpoint, replay = _pair()
    engine = Engine(endpoint, replay)
    await engine.start()
    try:
        with capture_logs() as logs:
            async with following(KvEventsConfig(endpoint=endpoint, replay=replay)) as (source, events):
                await engine.say(events=[stored(1000, A)])
                await _until(lambda: events.blocks.get(("b1", 0)) == hashes(A), "the first")
                await engine.say(damage=True)
                await engine.say(events=[stored(2000, B)])
                await _until(lambda: events.blocks["b1", 0] == hashes(B), "the view begun anew")
                (_, stream) = next(iter(source.streams()))
                assert stream.malformed["live"] + stream.malformed["replay"] >= 1
        reasons = [line["reason"] for line in logs if line["event"] == "kv_batch_malformed"]
        assert reasons
        assert all(reason == "Batch 1: the payload is not msgpack." for reason in reasons)
    finally:
        await engine.kill()


async def test_engines_that_connect_and_several_ranks() -> None:
    first = free_port()
    replay = free_port()
    config = KvEventsConfig(
        endpoint=f"tcp://127.0.0.1:{first}", replay=f"tcp://127.0.0.1:{replay}", ranks=2, bind=True
    )
    engines = [
        Engine(config.endpoint_of(rank), str(config.replay_of(rank)), "connect", rank) for rank in (0, 1)
    ]
    try:
        for engine in engines:
            await engine.start()
        async with following(config) as (_, events):
            await engines[0].say(events=[stored(1000, A)])
            await engines[1].say(events=[stored(1000, B)])
            await _until(lambda: events.blocks.get(("b1", 0)) == hashes(A), "rank 0")
            await _until(lambda: events.blocks.get(("b1", 1)) == hashes(B), "rank 1")
    finally:
        for engine in engines:
            await engine.kill()


async def test_streams_follow_the_list_and_an_address_in_use_is_said() -> None:
    taken = f"tcp://127.0.0.1:{free_port()}"
    config = KvEventsConfig(endpoint=taken, bind=True)
    with capture_logs() as logs:
        async with following(config) as (source, events):
            other = Endpoint(config, instance="eu-1")
            await source.apply([Endpoint(config), other, Endpoint(None, instance="eu-2")])
            await _until(lambda: any(line["event"] == "kv_socket_unusable" for line in logs), "it is said")
            assert {name for name, _ in source.streams()} == {"eu-0", "eu-1"}
            await source.apply([Endpoint(config, tokenizer="another")])
            assert {name for name, _ in source.streams()} == {"eu-0"}
            await source.apply([])
            assert not list(source.streams())
            assert all(event.kind == "cleared" for event in events.all)


async def test_without_a_salt_nothing_is_followed_and_it_says_so() -> None:
    source = KvEventsSource(None, lambda _: None)
    await source.start(cast(EventProducer, Events()))
    await source.apply([Endpoint(KvEventsConfig(endpoint="tcp://127.0.0.1:1"))])
    assert not list(source.streams())
    assert source.unready() == ["KV events of eu-0 are not followed: there is no prefix salt."]
    await source.stop()


@pytest.mark.parametrize(
    "bad",
    [
        {"endpoint": "http://x:1"},
        {"endpoint": "tcp://x"},
        {"endpoint": "tcp://x:99999"},
        {"endpoint": "tcp://x:1", "replay": "tcp://*:2"},
        {"endpoint": "tcp://x:1", "ranks": 0},
        {"endpoint": "tcp://x:1", "nonsense": 1},
    ],
)
def test_addresses_that_can_not_be(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        KvEventsConfig(**bad)


def test_the_addresses_of_ranks() -> None:
    config = KvEventsConfig(endpoint="tcp://*:5557", replay="ipc:///run/kv")
    assert (config.binds, config.endpoint_of(2), config.replay_of(0)) == (
        True,
        "tcp://*:5559",
        "ipc:///run/kv",
    )
    assert config.replay_of(2) == "ipc:///run/kv_dp2"
    assert not KvEventsConfig(endpoint="tcp://h:5557").binds
    found = KvEventsConfig(endpoint="tcp://{host}:5557", replay="tcp://{host}:5558")
    assert found.at("http://10.0.0.7:8000").replay_of(1) == "tcp://10.0.0.7:5559"
    assert found.at("http://[fd00::7]:8000").endpoint_of(0) == "tcp://[fd00::7]:5557"
