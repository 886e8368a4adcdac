"""A router on fake Kafka ends, and engines that misbehave on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from router.app import Parts, build
from router.metrics import RouterMetrics
from router.options import RouterOptions
from router.tables import FleetTables
from router.upstream import Engines
from schemas.base import Row
from schemas.codec import headers_for, to_json
from schemas.decisions import Decision
from schemas.endpoints import EndpointRow
from schemas.grants import LeaseRow
from schemas.outcomes import Outcome
from schemas.policy import PolicyRow
from schemas.readings import EngineGauges, Reading
from schemas.tables import InstanceRow
from schemas.topics import DECISIONS, ENDPOINTS, INSTANCES, LEASES, OUTCOMES, POLICY, ROUTERS, Topic
from transport.clock import now_ms

POOL = "demo-8b@v1"
BOOT = "boot-1"


def chunk(text: str | None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ANSWER = [chunk("one"), chunk(" two"), chunk(" three"), chunk(None, "stop"), DONE]


@dataclass
class Engine:
    """One engine; ``mode`` says how it behaves for the next requests."""

    instance: str
    region: str
    mode: str = "ok"
    seen: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    open: int = 0
    aborted: int = 0
    server: TestServer | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_post("/v1/completions", self._handle)
        self.server = TestServer(app)
        await self.server.start_server()

    @property
    def url(self) -> str:
        assert self.server is not None
        return str(self.server.make_url("")).rstrip("/")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.bodies.append(raw)
        self.seen.append(json.loads(raw))
        self.open += 1
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.mode == "status503":
            return web.Response(status=503)
        if self.mode == "status400":
            return web.json_response({"error": {"message": "no", "code": 400}}, status=400)
        if self.mode == "whole":
            usage = {
                "prompt_tokens": 7,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 2},
            }
            choice = {"message": {"content": "a b c"}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice], "usage": usage})
        if self.mode == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in self._parts():
            await response.write(part)
            await asyncio.sleep(0)
        if self.mode == "die":
            assert request.transport is not None
            request.transport.abort()
        elif self.mode in ("hang", "slow"):
            await self.gate.wait()
        return response

    def _parts(self) -> list[bytes]:
        error = b'data: {"error": {"message": "full", "code": %d}}\n\n'
        return {
            "ok": ANSWER,
            "usage": [
                *ANSWER[:-1],
                b'data: {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3, '
                b'"prompt_tokens_details": {"cached_tokens": 4}}}\n\n',
                DONE,
            ],
            "error503": [error % 503, DONE],
            "error500": [ANSWER[0], error % 500, DONE],
            "cut": ANSWER[:2],
            "die": ANSWER[:2],
            "hang": [b": still here\n\n"],
            "slow": ANSWER[:2],
        }[self.mode]


class FakeLog:
    """The event and row sinks: what was emitted, and acknowledgements on demand."""

    def __init__(self) -> None:
        self.events: list[tuple[Topic, Any]] = []
        self.rows: list[Any] = []
        self.healthy = True
        self.acks = asyncio.Event()
        self.acks.set()

    def emit(self, topic: Topic, event: Any) -> None:
        self.events.append((topic, event))

    async def emit_acked(self, topic: Topic, event: Any) -> None:
        self.events.append((topic, event))
        await self.acks.wait()

    async def put(self, topic: Topic, row: Row, *, partition_key: str) -> asyncio.Future[object]:
        assert topic is ROUTERS
        self.rows.append(row)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    @property
    def decisions(self) -> list[Decision]:
        return [event for topic, event in self.events if topic is DECISIONS]

    @property
    def outcomes(self) -> list[Outcome]:
        return [event for topic, event in self.events if topic is OUTCOMES]


@dataclass
class FakeFeed:
    caught_up: bool = True
    silent_ms: float = 0.0


class Rig:
    """A router, its engines and a client."""

    def __init__(self, options: RouterOptions) -> None:
        self.options = options
        self.log = FakeLog()
        self.feed = FakeFeed()
        self.tables = FleetTables()
        self.engines: dict[str, Engine] = {}
        self.version = 0
        self.offset = 0
        self.parts: Parts

    async def start(self) -> None:
        self.session = Engines(connect_timeout_ms=1000.0)
        self.parts = build(
            self.options,
            boot=BOOT,
            boot_started_at_ms=now_ms(),
            tables=self.tables,
            feed=self.feed,
            events=self.log,
            rows=self.log,
            engines=self.session,
            url="http://127.0.0.1:1",
            metrics=RouterMetrics(),
        )
        self.runner = web.AppRunner(self.parts.app, handler_cancellation=True, shutdown_timeout=0.2)
        await self.runner.setup()
        self.port = unused_port()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")

    async def stop(self) -> None:
        await self.client.close()
        await self.parts.heartbeat.stop()
        for engine in self.engines.values():
            engine.gate.set()
        await self.runner.cleanup()
        await self.session.close()
        for engine in self.engines.values():
            if engine.server is not None:
                await engine.server.close()

    async def engine(self, instance: str, region: str = "eu-west", mode: str = "ok") -> Engine:
        engine = self.engines[instance] = Engine(instance, region, mode)
        await engine.start()
        self.endpoint(instance, region, engine.url)
        return engine

    def dead_endpoint(self, instance: str, region: str = "eu-west") -> None:
        self.endpoint(instance, region, f"http://127.0.0.1:{unused_port()}")

    def endpoint(self, instance: str, region: str, url: str, **more: Any) -> None:
        values: dict[str, Any] = {"served_model": "demo-8b", "boot": "b1", "pools": [POOL]} | more
        row = EndpointRow(
            **self.stamps(), instance=instance, boot_started_at_ms=now_ms(), engine="vllm", url=url,
            region=region, **values,
        )  # fmt: skip
        self.put(ENDPOINTS, row)

    def figures(self, instance: str, region: str, running: float, waiting: float, **more: Any) -> None:
        at_ms = now_ms()
        gauges = EngineGauges(
            requests_running=Reading(value=running, quality="fresh", age_ms=0.0),
            requests_waiting=Reading(value=waiting, quality="fresh", age_ms=0.0),
        )
        values: dict[str, Any] = {"boot": "b1", "state": "ready", "sampled_at_ms": at_ms} | more
        row = InstanceRow(
            **self.stamps(), instance=instance, boot_started_at_ms=at_ms, engine="vllm", region=region,
            pools=[POOL], gauges=gauges, **values,
        )  # fmt: skip
        self.put(INSTANCES, row)

    def policy(self, **fields: Any) -> None:
        self.put(POLICY, PolicyRow(**self.stamps(), **fields))

    def lease(
        self, work_tokens: float, *, request_seq: int, service_class: str = "default", **more: Any
    ) -> None:
        values: dict[str, Any] = {"region": "eu-west", "duration_ms": 10_000.0} | more
        row = LeaseRow(
            **self.stamps(), pool=POOL, service_class=service_class, holder=self.options.router,
            holder_boot=BOOT, request_seq=request_seq, lease_id=f"l{self.version}", work_tokens=work_tokens,
            exposed_work_tokens=work_tokens, **values,
        )  # fmt: skip
        self.put(LEASES, row)

    def stamps(self) -> dict[str, Any]:
        self.version += 1
        return {"as_of_ms": now_ms(), "valid_for_ms": 5_000.0, "epoch": 1, "version": self.version}

    def put(self, topic: Topic, row: Row) -> None:
        self.offset += 1
        headers = tuple(headers_for(row))
        change = self.tables.views[topic.name].apply(
            0, self.offset, row.key().encode(), headers, to_json(row)
        )
        assert change is not None
        self.tables.on_change(topic, change)

    def ask(self, **headers: str) -> Any:
        """A streamed chat request; ``headers`` with underscores for dashes."""
        return self.post(headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str = "/v1/chat/completions", *, headers: Any = None, **fields: Any) -> Any:
        body = {"model": "demo-8b", "stream": True, "max_tokens": 100, "messages": [{"content": "hello"}]}
        return self.client.post(path, json=body | fields, headers=headers)

    def idle(self) -> bool:
        """Nothing is in flight anywhere in the router."""
        loads = [m.load.in_flight for m in self.tables.members(POOL)]
        held = [d.in_flight_work_tokens for d in self.parts.gate.holder.demands(0.0)]
        return (
            not any(loads) and not any(held) and not self.parts.desk.in_flight and not self.parts.gate.queued
        )


Until = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    async def wait(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def make_rig() -> Callable[..., contextlib.AbstractAsyncContextManager[Rig]]:
    @contextlib.asynccontextmanager
    async def make(**changes: Any) -> AsyncIterator[Rig]:
        values: dict[str, Any] = {"router": "router-t", "entry_region": "edge"} | changes
        rig = Rig(RouterOptions(**values))
        await rig.start()
        try:
            yield rig
        finally:
            await rig.stop()

    return make


@pytest.fixture
async def rig(make_rig: Any) -> AsyncIterator[Rig]:
    async with make_rig(idle_token_ms=10_000.0) as made:
        yield made


@pytest.fixture
def answer_bytes() -> bytes:
    return b"".join(ANSWER)
