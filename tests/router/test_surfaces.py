"""Picks, models, tables, health, metrics, and where requests go."""

from __future__ import annotations

from collections import Counter
from typing import Any

from schemas.operations import Claim
from schemas.topics import INSTANCES
from transport.clock import now_ms


async def test_a_pick_is_a_decision_without_proxying(rig: Any, until: Any) -> None:
    engine = await rig.engine("a")
    body = {"model": "demo-8b", "class": "default", "prompt_tokens": 1000, "intent": "p-1", "max_tokens": 10}
    async with rig.client.post("/v1/pick", json=body) as response:
        picked = await response.json()
    assert response.status == 200
    assert (picked["instance"], picked["region"], picked["url"]) == ("a", "eu-west", engine.url)
    assert picked["intent_id"] == "p-1"
    (decision,) = rig.log.decisions
    assert decision.decision_id == picked["decision_id"]
    assert (decision.estimated_prompt_tokens, decision.work_tokens) == (1000, 170.0)
    assert not rig.idle()
    told = {"decision_id": picked["decision_id"], "cause": "ok", "ttft_ms": 120.5, "tpot_ms": 9.0}
    async with rig.client.post("/v1/outcome", json=told | {"output_tokens": 10, "status": 200}) as response:
        assert await response.json() == {"decision_id": picked["decision_id"], "within_slo": True}
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.ttft_ms, outcome.output_tokens) == ("ok", 120.5, 10)
    assert rig.idle()
    async with rig.client.post("/v1/outcome", json=told) as response:
        assert response.status == 404
    for bad in ({"decision_id": "x", "cause": "lost"}, {"cause": "ok"}, []):
        async with rig.client.post("/v1/outcome", json=bad) as response:
            assert response.status == 400
    assert not engine.seen


async def test_a_pick_without_a_report_gives_its_place_back_at_the_deadline(rig: Any, until: Any) -> None:
    await rig.engine("a")
    async with rig.client.post("/v1/pick", json={"model": "demo-8b", "deadline_ms": 60}) as response:
        assert response.status == 200
    await until(rig.idle)
    assert not rig.log.outcomes, "how it ended is not known here: the control plane closes it as lost"
    async with rig.client.post("/v1/pick", json={"model": "demo-8b", "residency": "none"}) as response:
        assert (response.status, (await response.json())["error"]["rule"]) == (403, "residency_forbids")


async def test_models_tables_health_and_metrics(rig: Any) -> None:
    await rig.engine("a")
    rig.endpoint("old", "us-east", "http://127.0.0.1:1", reachable=False, pools=["demo-8b@v0"])
    rig.figures("a", "eu-west", 3, 1)
    async with rig.client.get("/v1/models") as response:
        models = {item["id"]: item["ready_endpoints"] for item in (await response.json())["data"]}
    assert models == {"demo-8b@v1": 1, "demo-8b@v0": 0}
    async with rig.client.get("/v1/tables/instances") as response:
        (row,) = (await response.json())["rows"]
    assert (row["key"], row["quality"], row["gauges"]["requests_running"]["value"]) == ("a", "fresh", 3.0)
    async with rig.client.get("/v1/tables/nothing") as response:
        assert response.status == 404
    for name in ("regions", "quotas", "leases", "routers", "policy", "endpoints"):
        async with rig.client.get(f"/v1/tables/{name}") as response:
            assert response.status == 200
    async with rig.client.get("/healthz") as response:
        assert response.status == 200
    rig.feed.caught_up = False
    async with rig.client.get("/readyz") as response:
        assert response.status == 503
        assert not (await response.json())["ready"]
    async with rig.client.get("/metrics") as response:
        assert "tokenfleet_router_in_flight_requests 0.0" in await response.text()
    async with rig.client.get("/elsewhere") as response:
        assert (response.status, (await response.json())["error"]["rule"]) == (404, "http_error")


async def test_the_least_loaded_region_and_instance_are_chosen(rig: Any) -> None:
    for name, region, running in (
        ("a", "eu-west", 8),
        ("b", "eu-west", 7),
        ("c", "us-east", 2),
        ("d", "us-east", 9),
    ):
        await rig.engine(name, region=region)
        rig.figures(name, region, running, 0)
    went: Counter[str] = Counter()
    for _ in range(10):
        async with rig.ask() as response:
            await response.read()
            went[response.headers["x-tokenfleet-instance"]] += 1
    assert went == {"c": 10}, "us-east has the least per endpoint, and c the least within it"


async def test_rows_of_before_a_claim_read_as_unknown(rig: Any) -> None:
    for name, running in (("a", 0), ("b", 50)):
        await rig.engine(name)
        rig.figures(name, "eu-west", running, 0)
    (a, b) = rig.tables.members("demo-8b@v1")
    assert rig.tables.trust(a, now_ms()) == rig.tables.trust(b, now_ms()) == 1.0
    from schemas.codec import headers_for, to_json

    claim = to_json(Claim(owner="new", at_ms=now_ms()))
    view = rig.tables.views[INSTANCES.name]
    rig.tables.on_change(INSTANCES, view.apply(0, 999, b"__claim__", tuple(headers_for(Claim)), claim))
    assert rig.tables.trust(a, now_ms()) == rig.tables.trust(b, now_ms()) == 0.0


async def test_a_new_boot_starts_from_nothing(rig: Any) -> None:
    engine = await rig.engine("a")
    rig.figures("a", "eu-west", 5, 5)
    (member,) = rig.tables.members("demo-8b@v1")
    old = member.load
    dispatch = old.dispatched(now_ms())
    rig.endpoint("a", "eu-west", engine.url, boot="b2")
    (member,) = rig.tables.members("demo-8b@v1")
    assert (member.load.in_flight, member.load.outstanding) == (0, None)
    old.finished(dispatch, now_ms())
    assert (member.load.in_flight, old.in_flight) == (0, 0)


async def test_an_endpoint_that_flaps_keeps_its_counts(rig: Any) -> None:
    engine = await rig.engine("a")
    (member,) = rig.tables.members("demo-8b@v1")
    dispatch = member.load.dispatched(now_ms())
    rig.tables._remove_endpoint("a")
    assert not list(rig.tables.members("demo-8b@v1"))
    rig.endpoint("a", "eu-west", engine.url)
    (member,) = rig.tables.members("demo-8b@v1")
    assert member.load.in_flight == 1
    member.load.finished(dispatch, now_ms())
    assert member.load.in_flight == 0


async def test_slo_headers_tighten_but_never_loosen(rig: Any) -> None:
    await rig.engine("a")
    async with rig.ask(x_slo_ttft_ms="100", x_slo_tpot_ms="99999") as response:
        await response.read()
    (decision,) = rig.log.decisions
    assert (decision.ttft_slo_ms, decision.tpot_slo_ms) == (100.0, 60.0)


async def test_the_full_input_is_logged_for_a_sample(make_rig: Any) -> None:
    async with make_rig(sample_ratio=1.0) as rig:
        await rig.engine("a")
        rig.figures("a", "eu-west", 2, 1)
        async with rig.ask() as response:
            await response.read()
        (decision,) = rig.log.decisions
        (candidate,) = decision.input.candidates
        assert (candidate.instance, candidate.requests_running, candidate.requests_waiting) == ("a", 2.0, 1.0)
        assert (candidate.score, candidate.reading_trust) == (3.0, 1.0)
        assert decision.input.rows[0].row == "instances:a"
