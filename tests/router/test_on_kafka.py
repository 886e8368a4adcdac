"""A router process's parts on real Kafka: rows in, requests through, decisions and outcomes in the log."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from aiokafka import AIOKafkaConsumer, TopicPartition

from router.options import RouterOptions
from router.service import PortTaken, RouterService
from schemas.codec import decode_events, parse_row
from schemas.endpoints import EndpointRow
from schemas.grants import LeaseRow
from schemas.policy import PolicyRow
from schemas.topics import DECISIONS, ENDPOINTS, LEASES, OUTCOMES, POLICY, ROUTERS, Topic
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.producer import RowProducer, start_producer

pytestmark = pytest.mark.kafka
CHUNK = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
END = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """Streams two tokens and ends, or goes silent where it is asked for 99 tokens."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHUNK + CHUNK)
        if body.get("max_tokens") == 99:
            await asyncio.sleep(60)
        await response.write(END)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


async def read_all(bootstrap: str, topic: Topic) -> list[Any]:
    """Every record of a topic now."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic.name, n) for n in range(topic.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[Any] = []
        async with asyncio.timeout(20):
            for tp in partitions:
                while await consumer.position(tp) < ends[tp]:
                    records += (await consumer.getmany(tp, timeout_ms=200)).get(tp, [])
        return records
    finally:
        await consumer.stop()


async def events_of(bootstrap: str, topic: Topic, router: str) -> list[Any]:
    """The events that this router wrote, in order."""
    found = []
    for record in await read_all(bootstrap, topic):
        decoded = decode_events(topic, record.headers, record.value)
        if decoded.producer == router:
            found += decoded.events
    return found


async def test_the_whole_way_through_kafka(kafka: Any, until: Any) -> None:
    tag = secrets.token_hex(4)
    router_id, pool, instance = f"router-{tag}", f"m-{tag}@v1", f"i-{tag}"
    await ensure_topics(kafka.bootstrap)
    producer = await start_producer(kafka.bootstrap)
    rows = RowProducer(producer)
    stamps = {"valid_for_ms": 60_000.0, "epoch": now_ms()}
    service = RouterService(
        kafka.bootstrap, RouterOptions(router=router_id, entry_region="edge", port=unused_port())
    )
    async with engine() as url, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(producer.stop)
        endpoint = EndpointRow(
            **stamps, as_of_ms=now_ms(), version=1, instance=instance, boot="b", boot_started_at_ms=now_ms(),
            engine="vllm", url=url, region="eu-west", pools=[pool], served_model="m",
        )  # fmt: skip
        policy = PolicyRow(
            **stamps, as_of_ms=now_ms(), version=1,
            residencies=[{"name": "us", "allowed_regions": ["us-east"]}],
            caps=[{"pool": pool, "work_tokens_per_endpoint": 5000.0}],
        )  # fmt: skip
        await rows.put(ENDPOINTS, endpoint, partition_key=pool)
        await rows.put(POLICY, policy, partition_key="fleet")
        await rows.flush()
        await service.start()
        client = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{service.port}"))
        await until(lambda: service.parts.health.ready)

        async def ask(max_tokens: int, **headers: str) -> Any:
            body = {"model": pool, "stream": True, "max_tokens": max_tokens, "messages": []}
            return await client.post("/v1/chat/completions", json=body, headers=headers)

        waiting = asyncio.create_task(ask(50, **{"Idempotency-Key": f"ok-{tag}"}))
        await until(lambda: service.parts.gate.queued == 1)
        heartbeat = await _asked_for(kafka.bootstrap, router_id)
        lease = LeaseRow(
            **stamps, as_of_ms=now_ms(), version=1, region="eu-west", pool=pool, service_class="default",
            holder=router_id, holder_boot=service.boot, request_seq=heartbeat.version, lease_id=f"l-{tag}",
            work_tokens=5000.0, exposed_work_tokens=5000.0, duration_ms=30_000.0,
        )  # fmt: skip
        await rows.put(LEASES, lease, partition_key=pool)
        response = await waiting
        assert response.status == 200
        assert await response.read() == CHUNK + CHUNK + END

        response = await ask(99, **{"Idempotency-Key": f"gone-{tag}"})
        await response.content.readany()
        response.close()
        response = await ask(50, **{"Idempotency-Key": f"law-{tag}", "x-tokenfleet-residency": "us"})
        assert response.status == 403
        await until(lambda: service.parts.desk.in_flight == 0)
        await service.stop()
        # The broker is shared by all tests, and so is the fleet's policy.
        await rows.remove(POLICY, "fleet", partition_key="fleet", epoch=policy.epoch, version=2)
        await rows.flush()
    decisions = {d.intent_id: d for d in await events_of(kafka.bootstrap, DECISIONS, router_id)}
    outcomes = {o.intent_id: o for o in await events_of(kafka.bootstrap, OUTCOMES, router_id)}
    assert set(decisions) == set(outcomes) == {f"ok-{tag}", f"gone-{tag}", f"law-{tag}"}
    ok, gone, law = (outcomes[f"{name}-{tag}"] for name in ("ok", "gone", "law"))
    assert (ok.cause, ok.output_tokens, ok.region, ok.instance) == ("ok", 2, "eu-west", instance)
    assert (ok.router, ok.router_boot, ok.pool, ok.entry_region) == (router_id, service.boot, pool, "edge")
    assert decisions[f"ok-{tag}"].lease_id == f"l-{tag}"
    assert (gone.cause, gone.output_tokens, gone.wasted_tokens) == ("cancelled", 2, 2)
    assert (law.cause, law.rule, law.status, law.instance) == ("shed", "residency_forbids", 403, None)
    assert decisions[f"law-{tag}"].input is not None
    last = (await _heartbeats(kafka.bootstrap, router_id))[-1]
    assert (last.mode, last.demands[0].in_flight_work_tokens) == ("stopping", 0.0)


async def _heartbeats(bootstrap: str, router_id: str) -> list[Any]:
    records = await read_all(bootstrap, ROUTERS)
    return [parse_row(ROUTERS, r.headers, r.value) for r in records if r.key == router_id.encode()]


async def _asked_for(bootstrap: str, router_id: str) -> Any:
    """The first heartbeat that asks for work."""
    async with asyncio.timeout(10):
        while True:
            for row in await _heartbeats(bootstrap, router_id):
                if row.demands and row.demands[0].wanted_work_tokens > 0:
                    return row


async def test_a_taken_port_is_one_sentence(kafka: Any) -> None:
    taken = TestServer(web.Application())
    await taken.start_server()
    service = RouterService(
        kafka.bootstrap, RouterOptions(router="r", entry_region="e", port=taken.port or 0)
    )
    try:
        with pytest.raises(PortTaken, match=f"can't listen on 127.0.0.1:{taken.port}"):
            await service.start()
    finally:
        await taken.close()
