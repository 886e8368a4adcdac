"""The load generator against routers that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sim.loadgen import IntentRecord, LiveView, LoadOptions, read_ledger, run_load
from sim.loadgen.retry import AttemptEnd, Cause
from sim.workloads.plan import IntentSpec

SPEC = IntentSpec(
    intent_id="i-0",
    at_ms=0.0,
    service_class="interactive",
    tenant="acme",
    entry_region="a",
    residency="eu",
    input_tokens=520,
    output_tokens=5,
    prefix_blocks=(3,),
    deadline_ms=20_000.0,
    ttft_slo_ms=15_000.0,
    tpot_slo_ms=15_000.0,
    client_timeout_ms=15_000.0,
)
OPTIONS = LoadOptions(cancel_share=0.0, backoff_base_ms=1.0, backoff_cap_ms=5.0, tenant_keys={"acme": "sk-1"})


@dataclass
class Ask:
    """One request at a router: with the answer that its behaviour is to give."""

    router: Router
    request: web.Request
    response: web.StreamResponse
    tokens: int


Behaviour = Callable[[Ask], Awaitable[web.StreamResponse]]


class Router:
    """A router that keeps what it was asked and behaves as told."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: list[tuple[web.Request, dict[str, object]]] = []
        self.was_asked = asyncio.Event()
        self.hung_up = asyncio.Event()
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/chat/completions", self.handle)
        app.router.add_post("/v1/completions", self.handle)
        self.server = TestServer(app, host="127.0.0.1")

    @property
    def url(self) -> str:
        return str(self.server.make_url("/"))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((request, body))
        self.was_asked.set()
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "x-tokenfleet-decision": f"d{len(self.asked)}",
                "x-tokenfleet-instance": "b-1",
                "x-tokenfleet-region": "b",
            }
        )
        return await self.behaviour(Ask(self, request, response, int(body["max_tokens"])))


async def send(response: web.StreamResponse, payload: object) -> None:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    await response.write(f"data: {text}\r\n\r\n".encode())


def token(finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": "ba "}, "finish_reason": finish}], "usage": None}


async def answer(ask: Ask) -> web.StreamResponse:
    await ask.response.prepare(ask.request)
    await ask.response.write(b": hello\n\n")
    await send(ask.response, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for number in range(ask.tokens):
        await send(ask.response, token("length" if number == ask.tokens - 1 else None))
    await send(ask.response, {"choices": [], "usage": {"completion_tokens": ask.tokens}})
    await send(ask.response, "[DONE]")
    return ask.response


def refuse_with(status: int, headers: dict[str, str] | None = None, times: int = 10**9) -> Behaviour:
    async def behave(ask: Ask) -> web.StreamResponse:
        if len(ask.router.asked) > times:
            return await answer(ask)
        body = {"error": {"message": "the quota of class interactive is used up", "code": status}}
        return web.json_response(body, status=status, headers=headers)

    return behave


def drop_after(tokens_sent: int | None) -> Behaviour:
    async def behave(ask: Ask) -> web.StreamResponse:
        if tokens_sent is not None:
            await ask.response.prepare(ask.request)
            for _ in range(tokens_sent):
                await send(ask.response, token())
            await asyncio.sleep(0.02)  # let the tokens leave before the connection is cut
        assert ask.request.transport is not None
        ask.request.transport.abort()
        return ask.response

    return behave


def stream_error_after(tokens_sent: int, code: int) -> Behaviour:
    async def behave(ask: Ask) -> web.StreamResponse:
        await ask.response.prepare(ask.request)
        for _ in range(tokens_sent):
            await send(ask.response, token())
        await send(ask.response, {"error": {"message": "engine says no", "code": code}})
        await send(ask.response, "[DONE]")
        return ask.response

    return behave


def hang_after(tokens_sent: int) -> Behaviour:
    async def behave(ask: Ask) -> web.StreamResponse:
        await ask.response.prepare(ask.request)
        for _ in range(tokens_sent):
            await send(ask.response, token())
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            ask.router.hung_up.set()
            raise
        return ask.response

    return behave


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


Start = Callable[[Behaviour], Awaitable[Router]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    routers: list[Router] = []

    async def go(behaviour: Behaviour) -> Router:
        router = Router(behaviour)
        await router.server.start_server()  # TestServer cancels handlers whose client hung up
        routers.append(router)
        return router

    yield go
    for router in routers:
        await router.server.close()


async def play(
    tmp_path: Path, *urls: str, spec: IntentSpec = SPEC, options: LoadOptions = OPTIONS, speed: float = 1.0
) -> IntentRecord:
    """One intent; what memory and file say must be the same."""
    path = tmp_path / "ledger.jsonl"
    ledger = await run_load([spec], {"a": urls}, ledger_path=path, seed=1, options=options, speed=speed)
    assert read_ledger(path) == ledger.records
    assert ledger.in_flight == {}
    (record,) = ledger.records
    assert record.finish_epoch_ms is not None
    assert all(attempt.end is not None and attempt.finish_epoch_ms is not None for attempt in record.attempts)
    return record


def ends(record: IntentRecord) -> list[AttemptEnd | None]:
    return [attempt.end for attempt in record.attempts]


async def test_a_whole_answer_and_what_was_sent(tmp_path: Path, start: Start) -> None:
    router = await start(answer)
    record = await play(tmp_path, router.url)
    assert (record.cause, record.error, record.tokens, record.wasted_tokens) == (Cause.OK, None, 5, 0)
    assert record.within_slo
    assert record.region == "b"
    assert record.ttft_ms is not None
    assert record.tpot_ms is not None
    (attempt,) = record.attempts
    assert (attempt.status, attempt.decision_id, attempt.instance, attempt.end) == (
        200,
        "d1",
        "b-1",
        AttemptEnd.OK,
    )
    assert attempt.first_token_epoch_ms == pytest.approx(record.start_epoch_ms + record.ttft_ms)
    ((request, body),) = router.asked
    headers = request.headers
    assert headers["Idempotency-Key"] == "i-0"
    assert headers["x-tokenfleet-attempt"] == "1"
    assert headers["x-tokenfleet-intent-start-ms"] == str(round(record.start_epoch_ms))
    assert headers["x-tokenfleet-class"] == "interactive"
    assert headers["x-tokenfleet-residency"] == "eu"
    assert 0 < int(headers["x-tokenfleet-deadline-ms"]) <= 20_000
    assert (headers["x-slo-ttft-ms"], headers["x-slo-tpot-ms"]) == ("15000", "15000")
    assert headers["Authorization"] == "Bearer sk-1"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["ignore_eos"], body["model"]) == (5, True, OPTIONS.model)
    assert len(body["messages"][0]["content"].split()) == 520  # type: ignore[index]


async def test_completions_without_residency_or_key(tmp_path: Path, start: Start) -> None:
    router = await start(answer)
    options = replace(OPTIONS, endpoint="completions", tenant_keys={})
    record = await play(tmp_path, router.url, spec=replace(SPEC, residency=None), options=options)
    ((request, body),) = router.asked
    assert record.cause is Cause.OK
    assert request.path == "/v1/completions"
    assert len(str(body["prompt"]).split()) == 520
    assert "Authorization" not in request.headers
    assert "x-tokenfleet-residency" not in request.headers


async def test_a_refused_connection_goes_to_the_next_router(tmp_path: Path, start: Start) -> None:
    router = await start(answer)
    record = await play(tmp_path, closed_port(), router.url)
    assert record.cause is Cause.OK
    assert ends(record) == [AttemptEnd.REFUSED, AttemptEnd.OK]
    ((request, _),) = router.asked
    assert request.headers["x-tokenfleet-attempt"] == "2"
    assert request.headers["x-tokenfleet-intent-start-ms"] == str(round(record.start_epoch_ms))
    assert [attempt.sent for attempt in record.attempts] == [False, True]
    assert record.must_be_logged


@pytest.mark.parametrize(("sent", "wasted"), [(None, 0), (0, 0), (3, 3)])
async def test_a_dropped_answer_is_made_whole_elsewhere(
    tmp_path: Path, start: Start, sent: int | None, wasted: int
) -> None:
    bad, good = await start(drop_after(sent)), await start(answer)
    record = await play(tmp_path, bad.url, good.url)
    assert record.cause is Cause.OK
    assert ends(record) == [AttemptEnd.DROPPED, AttemptEnd.OK]
    assert (record.tokens, record.wasted_tokens) == (5, wasted)
    assert record.ttft_ms is not None
    assert record.attempts[1].first_token_epoch_ms == pytest.approx(record.start_epoch_ms + record.ttft_ms)
    assert bad.asked[0][0].headers["Idempotency-Key"] == good.asked[0][0].headers["Idempotency-Key"]


async def test_nobody_there_until_patience_ends(tmp_path: Path) -> None:
    record = await play(tmp_path, closed_port(), closed_port(), spec=replace(SPEC, client_timeout_ms=400.0))
    assert record.cause is Cause.UNREACHED
    assert len(record.attempts) > 2
    assert set(ends(record)) == {AttemptEnd.REFUSED}
    assert len({attempt.router for attempt in record.attempts}) == 2
    assert not record.must_be_logged
    assert record.ttft_ms is None


async def test_always_dropped_is_failed_not_unreached(tmp_path: Path, start: Start) -> None:
    router = await start(drop_after(None))
    record = await play(tmp_path, router.url, spec=replace(SPEC, client_timeout_ms=400.0))
    assert record.cause in (Cause.FAILED, Cause.TIMEOUT)  # the last attempt may be cut short by the patience
    assert AttemptEnd.DROPPED in ends(record)


async def test_retry_after_is_followed_within_the_budget(tmp_path: Path, start: Start) -> None:
    router = await start(refuse_with(429, {"Retry-After": "0.01"}, times=2))
    other = await start(answer)
    record = await play(tmp_path, router.url, other.url)
    assert record.cause is Cause.OK
    assert ends(record) == [AttemptEnd.SHED, AttemptEnd.SHED, AttemptEnd.OK]
    assert record.attempts[0].retry_after_ms == 10.0
    assert record.attempts[0].error == "the quota of class interactive is used up"
    assert other.asked == []


@pytest.mark.parametrize(
    ("status", "headers", "asked", "cause"),
    [
        (429, {"Retry-After": "0"}, 3, Cause.SHED),
        (503, {"Retry-After": "3600"}, 1, Cause.SHED),
        (503, None, 1, Cause.SHED),
        (500, None, 3, Cause.FAILED),
        (400, {"Retry-After": "0"}, 1, Cause.FAILED),
        (404, None, 1, Cause.FAILED),
    ],
)
async def test_refusals_that_stay(
    tmp_path: Path, start: Start, status: int, headers: dict[str, str] | None, asked: int, cause: Cause
) -> None:
    router = await start(refuse_with(status, headers))
    record = await play(tmp_path, router.url)
    assert record.cause is cause
    assert len(router.asked) == asked
    assert {attempt.status for attempt in record.attempts} == {status}
    assert not record.within_slo


@pytest.mark.parametrize(("sent", "code", "cause"), [(0, 503, Cause.SHED), (2, 500, Cause.FAILED)])
async def test_an_error_inside_the_stream(
    tmp_path: Path, start: Start, sent: int, code: int, cause: Cause
) -> None:
    router = await start(stream_error_after(sent, code))
    record = await play(tmp_path, router.url)
    assert (record.cause, record.error, record.tokens) == (cause, "engine says no", sent)
    assert len(router.asked) == 1
    assert record.attempts[0].status == 200


async def test_a_first_token_that_never_comes(tmp_path: Path, start: Start) -> None:
    router = await start(hang_after(0))
    record = await play(tmp_path, router.url, spec=replace(SPEC, client_timeout_ms=60.0))
    assert (record.cause, record.error) == (Cause.TIMEOUT, "no first token in time")
    assert record.ttft_ms is None


async def test_a_stream_that_falls_silent_ends_at_the_deadline(tmp_path: Path, start: Start) -> None:
    router = await start(hang_after(2))
    spec = replace(SPEC, client_timeout_ms=9_000.0, deadline_ms=10_000.0)
    record = await play(tmp_path, router.url, spec=spec, speed=10.0)
    assert (record.cause, record.error, record.tokens) == (Cause.TIMEOUT, "not finished by the deadline", 2)
    assert record.ttft_ms is not None
    assert record.ttft_slo_ms == 1_500.0
    assert router.asked[0][0].headers["x-slo-ttft-ms"] == "1500"


async def test_a_client_that_leaves(tmp_path: Path, start: Start) -> None:
    router = await start(hang_after(10))
    spec = replace(SPEC, output_tokens=10)
    record = await play(tmp_path, router.url, spec=spec, options=replace(OPTIONS, cancel_share=1.0))
    assert record.cause is Cause.CANCELLED
    assert record.cancel_after_tokens is not None
    assert record.tokens >= record.cancel_after_tokens
    await asyncio.wait_for(router.hung_up.wait(), 10.0)  # the router learns of it


async def test_answers_that_are_no_streams(tmp_path: Path, start: Start) -> None:
    async def json_answer(ask: Ask) -> web.StreamResponse:
        return web.json_response({"choices": []})

    async def empty(ask: Ask) -> web.StreamResponse:
        await ask.response.prepare(ask.request)
        await send(ask.response, "[DONE]")
        return ask.response

    record = await play(tmp_path, (await start(json_answer)).url)
    assert (record.cause, record.error) == (
        Cause.FAILED,
        "the answer is application/json, not an event stream",
    )
    (tmp_path / "ledger.jsonl").unlink()
    record = await play(tmp_path, (await start(empty)).url)
    assert (record.cause, record.error) == (Cause.FAILED, "the answer has no token")


async def test_a_connection_left_open_after_a_whole_answer(tmp_path: Path, start: Start) -> None:
    async def linger(ask: Ask) -> web.StreamResponse:
        await answer(ask)
        await asyncio.sleep(3_600)
        return ask.response

    record = await play(tmp_path, (await start(linger)).url)
    assert (record.cause, record.error, record.tokens) == (Cause.OK, None, 5)


async def test_many_intents_are_booked_once_each_and_shown(tmp_path: Path, start: Start) -> None:
    good, bad, shedding = await start(answer), await start(drop_after(2)), await start(refuse_with(429))
    plan = [replace(SPEC, intent_id=f"i-{n}", at_ms=n * 2.0, entry_region="ab"[n % 2]) for n in range(60)]
    views: list[LiveView] = []
    ledger = await run_load(
        plan,
        {"a": [bad.url, good.url], "b": [shedding.url]},
        ledger_path=tmp_path / "l",
        seed=3,
        on_progress=views.append,
        options=replace(OPTIONS, progress_every_s=0.02),
    )
    assert sorted(record.intent_id for record in ledger.records) == sorted(spec.intent_id for spec in plan)
    assert views[-1].finished == {"ok": 30, "shed": 30}
    assert (views[-1].planned, views[-1].offered, views[-1].in_flight, views[-1].retries) == (60, 60, 0, 30)
    assert len(views) > 1
    assert all(before.offered <= after.offered for before, after in pairwise(views))


async def test_a_display_that_fails_does_not_end_the_run(tmp_path: Path, start: Start) -> None:
    router = await start(answer)

    def broken(view: LiveView) -> None:
        raise RuntimeError("no terminal")

    ledger = await run_load(
        [SPEC], {"a": [router.url]}, ledger_path=tmp_path / "l", seed=1, on_progress=broken
    )
    assert [record.cause for record in ledger.records] == [Cause.OK]


async def test_stop_ends_the_arrivals_and_lets_the_rest_finish(tmp_path: Path, start: Start) -> None:
    router = await start(answer)
    stop = asyncio.Event()
    plan = [replace(SPEC, intent_id="now"), replace(SPEC, intent_id="later", at_ms=3_600_000.0)]
    run = asyncio.create_task(
        run_load(plan, {"a": [router.url]}, ledger_path=tmp_path / "l", seed=1, stop=stop, options=OPTIONS)
    )
    await router.was_asked.wait()
    stop.set()
    ledger = await run
    assert [(record.intent_id, record.cause) for record in ledger.records] == [("now", Cause.OK)]


async def test_a_killed_run_books_what_was_open(tmp_path: Path, start: Start) -> None:
    router = await start(hang_after(1))
    run = asyncio.create_task(
        run_load([SPEC], {"a": [router.url]}, ledger_path=tmp_path / "l", seed=1, options=OPTIONS)
    )
    await router.was_asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    (record,) = read_ledger(tmp_path / "l")
    assert (record.cause, record.error) == (Cause.CANCELLED, "the load generator was stopped")


async def test_a_fault_of_its_own_is_booked_as_failed(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start(answer)

    def broken(*args: object) -> bytes:
        raise RuntimeError("no memory")

    monkeypatch.setattr("sim.loadgen.run.request_body", broken)
    record = await play(tmp_path, router.url)
    assert record.cause is Cause.FAILED
    assert "no memory" in str(record.error)
