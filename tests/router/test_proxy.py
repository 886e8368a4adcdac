"""The proxy against engines that answer, refuse, die, hang and dawdle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


async def test_a_stream_passes_unchanged_and_is_recorded(rig: Any, until: Any, answer_bytes: bytes) -> None:
    await rig.engine("a", mode="ok")
    async with rig.ask(Idempotency_Key="intent-1", x_tokenfleet_class="default") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert await response.read() == answer_bytes
        headers = response.headers
    await until(lambda: rig.log.outcomes)
    (decision,), (outcome,) = rig.log.decisions, rig.log.outcomes
    assert headers["x-tokenfleet-decision"] == decision.decision_id == outcome.decision_id
    assert headers["x-tokenfleet-intent"] == decision.intent_id == outcome.intent_id == "intent-1"
    assert (headers["x-tokenfleet-instance"], headers["x-tokenfleet-region"]) == ("a", "eu-west")
    assert headers["x-tokenfleet-attempt"] == "1"
    assert (decision.verdict, decision.instance, decision.instance_boot) == ("dispatched", "a", "b1")
    assert not outcome.intent_inferred
    assert (outcome.cause, outcome.rule, outcome.status, outcome.within_slo) == ("ok", None, 200, True)
    assert (outcome.output_tokens, outcome.wasted_tokens, outcome.prompt_tokens) == (3, 0, None)
    assert outcome.ttft_ms is not None
    assert outcome.tpot_ms is not None
    assert outcome.e2e_ms >= outcome.ttft_ms
    assert outcome.work_tokens == decision.work_tokens > 0
    assert rig.idle()


async def test_usage_that_the_client_asked_for_is_taken(rig: Any, until: Any) -> None:
    await rig.engine("a", mode="usage")
    async with rig.post(stream_options={"include_usage": True}) as response:
        await response.read()
    await until(lambda: rig.log.outcomes)
    (outcome,) = rig.log.outcomes
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (11, 4, 3)


async def test_an_answer_in_one_piece(rig: Any, until: Any) -> None:
    engine = await rig.engine("a", mode="whole")
    async with rig.post("/v1/completions", stream=False, prompt="a b c", messages=None) as response:
        assert (await response.json())["usage"]["completion_tokens"] == 3
    await until(lambda: rig.log.outcomes)
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (
        "ok",
        7,
        2,
        3,
    )
    assert outcome.ttft_ms is None, "nobody saw the first token of an answer in one piece"
    assert outcome.within_slo
    assert engine.seen[0]["prompt"] == "a b c"


async def test_bytes_go_out_as_they_came_unless_the_engine_knows_another_name(rig: Any) -> None:
    engine = await rig.engine("a")
    raw = b'{ "model":"demo-8b","stream": true, "messages":[] , "x": 1e3}'
    async with rig.client.post("/v1/chat/completions", data=raw) as response:
        await response.read()
    async with rig.client.post("/v1/chat/completions", data=raw.replace(b"8b", b"8b@v1")) as response:
        await response.read()
    assert engine.bodies[0] == raw
    assert engine.seen[1] == engine.seen[0]


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("refuse", "engine_connection_refused"),
        ("status503", "engine_status_503"),
        ("error503", "engine_stream_error_503"),
        ("reset", "engine_connection_reset"),
    ],
)
async def test_an_engine_that_takes_nothing_is_passed_by(rig: Any, until: Any, mode: str, rule: str) -> None:
    if mode == "refuse":
        rig.dead_endpoint("bad")
    else:
        await rig.engine("bad", mode=mode)
    await rig.engine("good")
    rig.figures("bad", "eu-west", 0, 0)
    rig.figures("good", "eu-west", 9, 0)
    async with rig.ask() as response:
        assert response.status == 200
        assert (response.headers["x-tokenfleet-instance"], response.headers["x-tokenfleet-attempt"]) == (
            "good",
            "2",
        )
        await response.read()
    await until(lambda: len(rig.log.outcomes) == 2)
    first, second = rig.log.outcomes
    assert (first.cause, first.rule, first.instance, first.attempt) == ("failed", rule, "bad", 1)
    assert (second.cause, second.instance, second.attempt) == ("ok", "good", 2)
    assert first.intent_id == second.intent_id
    assert first.decision_id != second.decision_id
    assert first.intent_started_at_ms == second.intent_started_at_ms
    async with rig.ask() as response:  # the one that failed is left out for a moment
        assert response.headers["x-tokenfleet-attempt"] == "1"
        await response.read()
    assert rig.idle()


async def test_no_more_than_three_tries_then_a_clear_answer(rig: Any, until: Any) -> None:
    for name in ("a", "b", "c", "d"):
        await rig.engine(name, mode="status503")
    async with rig.ask() as response:
        assert response.status == 503
        assert (await response.json())["error"]["rule"] == "engine_status_503"
        assert response.headers["Retry-After"] == "1"
    await until(lambda: len(rig.log.outcomes) == 3)
    assert [o.attempt for o in rig.log.outcomes] == [1, 2, 3]
    assert len({o.instance for o in rig.log.outcomes}) == 3
    assert rig.idle()


async def test_an_error_inside_a_stream_is_a_failure_though_the_status_is_200(rig: Any, until: Any) -> None:
    await rig.engine("a", mode="error500")
    async with rig.ask() as response:
        assert response.status == 200
        assert b'"code": 500' in await response.read()
    await until(lambda: rig.log.outcomes)
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.rule) == ("failed", "engine_stream_error_500")
    assert (outcome.output_tokens, outcome.wasted_tokens) == (1, 1)
    assert not outcome.within_slo


@pytest.mark.parametrize(("mode", "rule"), [("die", "engine_connection_lost"), ("cut", "stream_ended_early")])
async def test_death_in_mid_stream_is_told_to_the_client(rig: Any, until: Any, mode: str, rule: str) -> None:
    await rig.engine("a", mode=mode)
    await rig.engine("b", mode=mode)
    async with rig.ask() as response:
        text = await response.read()
    assert rule.encode() in text
    assert text.endswith(b"data: [DONE]\n\n")
    await until(lambda: rig.log.outcomes)
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.rule, outcome.output_tokens) == ("failed", rule, 2)
    assert rig.idle()


async def test_other_statuses_are_passed_on(rig: Any, until: Any) -> None:
    await rig.engine("a", mode="status400")
    async with rig.ask() as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"] == "no"
    await until(lambda: rig.log.outcomes)
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.rule, outcome.status) == ("failed", "engine_status_400", 400)


async def test_a_silent_stream_ends_though_comments_keep_it_alive(make_rig: Any, until: Any) -> None:
    async with make_rig(idle_token_ms=80.0) as rig:
        rig.policy(classes=[{"name": "default", "ttft_slo_ms": 40.0}])
        engine = await rig.engine("a", mode="hang")
        async with rig.ask() as response:
            assert b"idle_stream" in await response.read()
        await until(lambda: rig.log.outcomes)
        (outcome,) = rig.log.outcomes
        assert (outcome.cause, outcome.rule, outcome.ttft_ms) == ("timeout", "idle_stream", None)
        assert rig.idle()
        assert engine.seen


async def test_the_deadline_ends_an_attempt(rig: Any, until: Any) -> None:
    await rig.engine("a", mode="slow")
    async with rig.ask(x_tokenfleet_deadline_ms="1000") as response:
        assert b'"rule": "deadline"' in await response.read()
    await until(lambda: rig.log.outcomes)
    (outcome,) = rig.log.outcomes
    assert (outcome.cause, outcome.rule, outcome.output_tokens) == ("timeout", "deadline", 2)
    assert outcome.deadline_at_ms - outcome.intent_started_at_ms == 1000


async def test_a_client_that_leaves_ends_the_engine_s_work_at_once(make_rig: Any, until: Any) -> None:
    async with make_rig() as rig:
        engine = await rig.engine("a", mode="slow")
        response = await rig.ask()
        await response.content.readany()
        assert engine.open == 1
        response.close()
        await until(lambda: rig.log.outcomes)
        (outcome,) = rig.log.outcomes
        assert (outcome.cause, outcome.rule, outcome.output_tokens) == ("cancelled", "client_gone", 2)
        assert outcome.wasted_tokens == 2
        await until(rig.idle)


async def test_counters_do_not_leak_when_many_clients_leave_at_any_moment(rig: Any, until: Any) -> None:
    for name in ("a", "b"):
        await rig.engine(name, mode="slow")

    async def leave_after(seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), rig.ask() as response:
                await response.read()
        except TimeoutError:
            pass

    await asyncio.gather(*(leave_after(0.002 * number) for number in range(40)))
    await until(rig.idle)
    await until(lambda: len(rig.log.outcomes) == len(rig.log.decisions))
    assert {o.decision_id for o in rig.log.outcomes} == {d.decision_id for d in rig.log.decisions}
    assert {o.cause for o in rig.log.outcomes} <= {"cancelled"}


async def test_a_stopping_router_says_failed_not_cancelled(make_rig: Any) -> None:
    async with make_rig() as rig:
        await rig.engine("a", mode="slow")
        response = await rig.ask()
        await response.content.readany()
        rig.parts.health.stopping = True
        await rig.runner.cleanup()
        (outcome,) = rig.log.outcomes
        assert (outcome.cause, outcome.rule) == ("failed", "router_stopping")
        response.close()


async def test_an_equal_request_after_a_failure_is_the_same_intent(rig: Any, until: Any) -> None:
    engine = await rig.engine("a", mode="error500")
    async with rig.ask() as response:
        await response.read()
    engine.mode = "ok"
    async with rig.ask() as response:
        await response.read()
    async with rig.ask() as response:
        await response.read()
    await until(lambda: len(rig.log.outcomes) == 3)
    first, second, third = rig.log.outcomes
    assert second.intent_id == first.intent_id != third.intent_id
    assert (first.attempt, second.attempt, third.attempt) == (1, 2, 1)
    assert second.intent_started_at_ms == first.intent_started_at_ms
    assert first.intent_inferred
    assert second.intent_inferred


async def test_the_answer_waits_for_the_decision_to_be_in_the_log(make_rig: Any) -> None:
    async with make_rig(ack_wait_ms=60_000.0) as rig:
        await rig.engine("a")
        rig.log.acks.clear()
        asking = asyncio.create_task(rig.ask().__aenter__())
        while not rig.engines["a"].seen:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert not asking.done(), "the engine has answered, but the decision is not in the log yet"
        rig.log.acks.set()
        response = await asking
        assert response.status == 200
        await response.read()


async def test_without_acknowledgements_it_serves_on_and_says_so(make_rig: Any) -> None:
    async with make_rig(ack_wait_ms=20.0) as rig:
        await rig.engine("a")
        rig.log.acks.clear()
        async with rig.ask() as response:
            assert response.status == 200
            await response.read()
        async with rig.client.get("/readyz") as response:
            said = await response.json()
        assert (response.status, said["mode"]) == (200, "degraded")
        assert "acknowledged" in said["reasons"][0]
        rig.log.acks.set()
        await asyncio.sleep(0.01)
        async with rig.client.get("/readyz") as response:
            assert (await response.json())["mode"] == "normal"
