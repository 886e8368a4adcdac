"""Decisions without proxying: a gateway of another kind asks where to go, and says later how it went."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, ValidationError

from router.asks import Ask, parse_body, read_ask, tenant_of
from router.journal import Figures
from router.placing import Placement
from router.proxy import Desk, headers_of
from router.refusals import Refusal, malformed
from schemas.base import DurationMs, EpochMs, Name, Record, Sentence, Tokens
from schemas.decisions import Decision
from transport.clock import now_ms

_AS_HEADERS = {
    "class": "x-tokenfleet-class",
    "residency": "x-tokenfleet-residency",
    "intent": "Idempotency-Key",
    "attempt": "x-tokenfleet-attempt",
    "intent_started_at_ms": "x-tokenfleet-intent-start-ms",
    "deadline_ms": "x-tokenfleet-deadline-ms",
}


class PickOutcome(Record):
    """What a picker reports of its attempt; durations in milliseconds, from the intent's start."""

    decision_id: Name
    cause: Literal["ok", "timeout", "cancelled", "failed"]
    rule: Sentence | None = None
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    first_token_at_ms: EpochMs | None = None
    ttft_ms: DurationMs | None = None
    tpot_ms: DurationMs | None = None
    prompt_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    output_tokens: Tokens | None = None


@dataclass(slots=True)
class _Open:
    ask: Ask
    placement: Placement
    decision: Decision
    timer: asyncio.TimerHandle


class Picks:
    """Open picks by decision id. One that is never reported gives its place back at its deadline; the
    control plane then closes it as lost."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def pick(self, request: web.Request) -> web.Response:
        """``POST /v1/pick``: where this request should go. Refusals are as the proxy's."""
        desk = self._desk
        raw = await request.read()
        body = parse_body(raw)
        headers = dict(request.headers.items())
        headers |= {name: _text(body, field) for field, name in _AS_HEADERS.items() if body.get(field)}
        at_ms = now_ms()
        ask = read_ask(
            headers=_CaseFree(headers),
            path=request.path,
            raw=raw,
            body=body,
            policy=desk.tables.policy,
            ready_endpoints=desk.tables.ready_endpoints(at_ms),
            estimators=desk.estimators,
            prompt_tokens=_prompt_tokens(body),
        )
        intent = desk.begin(ask, at_ms)
        try:
            placement, decision = await desk.place(ask, intent, set())
        except Refusal as refusal:
            desk.metrics.refusals.labels(str(refusal.status), refusal.rule).inc()
            return refusal.response(headers_of(refusal.decision_id, intent, None))
        written = desk.journal.write_ahead(decision)
        left_s = max(0, decision.deadline_at_ms - now_ms()) / 1000.0
        timer = asyncio.get_running_loop().call_later(left_s, self._expire, decision.decision_id)
        self._open[decision.decision_id] = _Open(ask, placement, decision, timer)
        await desk.journal.acked(written)
        member = placement.member
        answer = {
            "decision_id": decision.decision_id,
            "intent_id": intent.intent_id,
            "attempt": intent.attempt,
            "pool": ask.pool,
            "region": member.region,
            "instance": member.instance,
            "boot": member.boot,
            "url": member.row.url,
            "served_model": member.row.served_model,
            "deadline_at_ms": decision.deadline_at_ms,
        }
        return web.json_response(answer, headers=headers_of(decision.decision_id, intent, placement))

    async def report(self, request: web.Request) -> web.Response:
        """``POST /v1/outcome``: how a picked attempt ended. 404 where it is unknown, reported or expired."""
        desk = self._desk
        try:
            told = PickOutcome.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the body"
            raise malformed(f"The outcome is not usable: {where}: {first['msg']}.") from None
        tenant = tenant_of(request.headers, desk.tables.policy)
        known = self._open.get(told.decision_id)
        if known is None or known.decision.tenant != tenant.tenant:
            raise Refusal(404, "unknown_decision", "There is no open pick with this decision id.")
        self._close(told.decision_id, ok=told.cause == "ok")
        figures = Figures(
            status=told.status,
            queue_ms=known.placement.queue_ms,
            first_token_at_ms=told.first_token_at_ms,
            prompt_tokens=told.prompt_tokens,
            cached_tokens=told.cached_tokens,
            output_tokens=told.output_tokens,
            ttft_ms=told.ttft_ms,
            tpot_ms=told.tpot_ms,
        )
        outcome = desk.journal.outcome(
            known.decision,
            told.cause,
            started_at_ms=known.placement.dispatched_at_ms,
            rule=told.rule,
            figures=figures,
        )
        if told.cause == "ok":
            desk.learn(known.ask, figures)
        desk.journal.end(outcome)
        return web.json_response({"decision_id": told.decision_id, "within_slo": outcome.within_slo})

    def _expire(self, decision_id: str) -> None:
        self._close(decision_id, ok=False)

    def _close(self, decision_id: str, *, ok: bool) -> None:
        known = self._open.pop(decision_id, None)
        if known is not None:
            known.timer.cancel()
            self._desk.placer.release(known.placement, ok=ok)


class _CaseFree(dict[str, str]):
    """Header names in any case, as in HTTP."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in headers.items()})

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key.lower(), default)


def _text(body: dict[str, Any], field: str) -> str:
    value = body[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise malformed(f"The field {field} must be a text or a number.")
    return str(value)


def _prompt_tokens(body: dict[str, Any]) -> int | None:
    value = body.get("prompt_tokens")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100_000_000:
        raise malformed("The field prompt_tokens must be a count of tokens.")
    return value
