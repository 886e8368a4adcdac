"""What is refused, by which rule, with which status, and that each refusal of a known pool is in the log."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest


async def test_residency_is_hard_and_fails_closed(rig: Any) -> None:
    await rig.engine("us", region="us-east")
    rig.policy(residencies=[{"name": "eu", "allowed_regions": ["eu-west"]}])
    for residency in ("eu", "unheard-of"):
        async with rig.ask(x_tokenfleet_residency=residency, Idempotency_Key=f"k-{residency}") as response:
            assert response.status == 403
            assert (await response.json())["error"]["rule"] == "residency_forbids"
    decisions, outcomes = rig.log.decisions, rig.log.outcomes
    assert [d.verdict for d in decisions] == ["shed", "shed"]
    assert [o.cause for o in outcomes] == ["shed", "shed"]
    assert {d.decision_id for d in decisions} == {o.decision_id for o in outcomes}
    assert decisions[0].input is not None
    assert decisions[0].input.candidates[0].excluded_by.startswith("residency")
    assert not rig.engines["us"].seen


async def test_residency_holds_when_the_allowed_region_fails(rig: Any) -> None:
    rig.dead_endpoint("eu")
    us = await rig.engine("us", region="us-east")
    rig.policy(residencies=[{"name": "eu", "allowed_regions": ["eu-west"]}])
    async with rig.ask(x_tokenfleet_residency="eu") as response:
        assert response.status == 503
        assert (await response.json())["error"]["rule"] == "no_ready_endpoint"
    assert not us.seen
    assert [o.cause for o in rig.log.outcomes] == ["failed", "shed"]


async def test_tenants_are_known_by_their_keys_only(rig: Any, until: Any) -> None:
    await rig.engine("a")
    digest = hashlib.sha256(b"secret").hexdigest()
    rig.policy(
        classes=[{"name": "gold"}, {"name": "iron"}],
        tenants=[{"tenant": "acme", "key_sha256": digest, "classes": ["iron"], "residency": None}],
    )
    async with rig.ask(Authorization="Bearer wrong") as response:
        assert (response.status, (await response.json())["error"]["rule"]) == (401, "unknown_key")
    async with rig.ask() as response:
        assert response.status == 401
    assert not rig.log.events
    async with rig.ask(Authorization="Bearer secret", x_tokenfleet_class="gold") as response:
        assert (response.status, (await response.json())["error"]["rule"]) == (403, "tenant_not_allowed")
    async with rig.ask(Authorization="Bearer secret", x_tokenfleet_class="iron") as response:
        assert response.status == 200
        await response.read()
    await until(lambda: len(rig.log.outcomes) == 2)
    assert {o.tenant for o in rig.log.outcomes} == {"acme"}
    async with rig.client.get("/v1/tables/policy") as response:
        assert digest not in await response.text()


@pytest.mark.parametrize(
    ("body", "headers", "status", "rule"),
    [
        (b"{", {}, 400, "malformed_request"),
        (b"\xff\xfe", {}, 400, "malformed_request"),
        (b"[]", {}, 400, "malformed_request"),
        (b"{}", {}, 400, "malformed_request"),
        (b'{"model": "demo-8b", "stream": "yes"}', {}, 400, "malformed_request"),
        (b'{"model": "demo-8b"}', {"x-tokenfleet-class": "none"}, 400, "malformed_request"),
        (b'{"model": "demo-8b"}', {"x-slo-ttft-ms": "soon"}, 400, "malformed_request"),
        (b'{"model": "demo-8b"}', {"x-tokenfleet-residency": "a b"}, 400, "malformed_request"),
        (b'{"model": "other"}', {}, 404, "unknown_model"),
        (b'{"model": "demo-8b@v2"}', {}, 404, "unknown_model"),
    ],
)
async def test_what_can_not_be_understood(
    rig: Any, body: bytes, headers: Any, status: int, rule: str
) -> None:
    await rig.engine("a")
    async with rig.client.post("/v1/chat/completions", data=body, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["rule"]) == (status, rule)
    assert not rig.engines["a"].seen


async def test_a_body_beyond_the_limit(make_rig: Any) -> None:
    async with make_rig(max_body_bytes=1000) as rig:
        await rig.engine("a")
        async with rig.post(prompt="x" * 2000) as response:
            assert (response.status, (await response.json())["error"]["rule"]) == (413, "body_too_large")


async def test_operators_drain_exclude_and_pin(rig: Any) -> None:
    for name, region in (("a", "eu-west"), ("b", "us-east"), ("c", "us-east")):
        await rig.engine(name, region=region)

    async def went_to() -> str:
        async with rig.ask() as response:
            await response.read()
            return str(response.headers["x-tokenfleet-instance"])

    rig.policy(operations=[{"kind": "region", "name": "us-east", "action": "drain"}])
    assert {await went_to() for _ in range(8)} == {"a"}
    rig.policy(operations=[{"kind": "instance", "name": "a", "action": "exclude"}])
    assert {await went_to() for _ in range(20)} == {"b", "c"}
    rig.policy(operations=[{"kind": "instance", "name": "c", "action": "pin"}])
    assert {await went_to() for _ in range(8)} == {"c"}


async def test_without_a_lease_it_waits_a_while_and_then_refuses(rig: Any) -> None:
    await rig.engine("a")
    rig.policy(
        classes=[{"name": "default", "ttft_slo_ms": 50.0}], caps=[{"work_tokens_per_endpoint": 1000.0}]
    )
    async with rig.ask() as response:
        assert response.status == 429
        assert (await response.json())["error"]["rule"] == "no_lease_headroom"
        assert int(response.headers["Retry-After"]) >= 1
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.rule, outcome.status) == ("shed", "no_lease_headroom", 429)
    assert outcome.queue_ms >= 90
    (demand,) = rig.parts.gate.holder.demands(0.0)
    assert demand.service_class == "default"
    assert rig.idle()


async def test_work_enters_under_leases_and_waits_for_them(rig: Any, until: Any) -> None:
    engine = await rig.engine("a", mode="slow")
    rig.policy(caps=[{"work_tokens_per_endpoint": 1000.0}])
    await rig.parts.heartbeat.beat()
    rig.lease(150.0, request_seq=1)
    first = await rig.ask()
    second = asyncio.create_task(rig.ask().__aenter__())
    await until(lambda: rig.parts.gate.queued == 1)
    assert engine.open == 1
    await rig.parts.heartbeat.beat()
    row = rig.log.rows[-1]
    assert row.demands[0].in_flight_work_tokens == pytest.approx(rig.log.decisions[0].work_tokens)
    assert row.demands[0].wanted_work_tokens > row.demands[0].in_flight_work_tokens
    rig.lease(400.0, request_seq=2)
    response = await second
    assert rig.log.decisions[1].lease_id is not None
    assert response.status == 200
    third = asyncio.create_task(rig.post(max_tokens=250).__aenter__())
    await until(lambda: rig.parts.gate.queued == 1)
    engine.gate.set()
    assert (await third).status == 200, "work that ends makes room"
    for given in (first, response, await third):
        given.close()
    await until(rig.idle)


async def test_a_client_that_leaves_the_queue_is_recorded_as_cancelled(rig: Any, until: Any) -> None:
    await rig.engine("a")
    rig.policy(caps=[{"work_tokens_per_endpoint": 1000.0}])
    asking = asyncio.create_task(rig.ask(Idempotency_Key="gone").__aenter__())
    await until(lambda: rig.parts.gate.queued == 1)
    asking.cancel()
    await until(lambda: rig.log.outcomes)
    (outcome,), (decision,) = rig.log.outcomes, rig.log.decisions
    assert (outcome.cause, outcome.rule, outcome.instance) == ("cancelled", "cancelled_while_queued", None)
    assert decision.decision_id == outcome.decision_id
    assert decision.verdict == "shed"
    assert rig.idle()


async def test_a_full_queue_refuses(make_rig: Any, until: Any) -> None:
    async with make_rig(queue_limit=1) as rig:
        await rig.engine("a")
        rig.policy(caps=[{"work_tokens_per_endpoint": 1000.0}])
        waiting = asyncio.create_task(rig.ask().__aenter__())
        await until(lambda: rig.parts.gate.queued == 1)
        async with rig.ask() as response:
            assert (response.status, (await response.json())["error"]["rule"]) == (429, "queue_full")
        waiting.cancel()


async def test_no_waiting_for_leases_while_the_broker_is_away(rig: Any) -> None:
    await rig.engine("a")
    rig.policy(caps=[{"work_tokens_per_endpoint": 1000.0}])
    rig.feed.silent_ms = 60_000.0
    async with rig.ask() as response:
        assert (response.status, (await response.json())["error"]["rule"]) == (429, "no_lease_headroom")
    assert rig.log.outcomes[0].queue_ms < 1000


async def test_an_intent_past_its_deadline_is_not_started(rig: Any) -> None:
    engine = await rig.engine("a")
    async with rig.ask(x_tokenfleet_intent_start_ms="1600000000000", Idempotency_Key="old") as response:
        assert response.status == 429
        assert (await response.json())["error"]["rule"] == "deadline_unreachable"
    assert not engine.seen
    (outcome,) = rig.log.outcomes
    assert outcome.at_ms >= outcome.deadline_at_ms
