"""The OpenAI-compatible proxy: one intent, up to a few attempts, each with its decision and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from minds.identity import IntentAttempt, IntentBook
from router.asks import Ask, Estimators, parse_body, read_ask
from router.attempt import Attempt, AttemptDeps, Retry
from router.journal import Figures, Journal
from router.metrics import RouterMetrics
from router.options import RouterOptions
from router.placing import Key, Placement, Placer
from router.refusals import Refusal
from router.tables import FleetTables
from router.upstream import Engines
from schemas.decisions import Decision
from transport.clock import now_ms

HEADER_DECISION = "x-tokenfleet-decision"
HEADER_INTENT = "x-tokenfleet-intent"
HEADER_ATTEMPT = "x-tokenfleet-attempt"
HEADER_INSTANCE = "x-tokenfleet-instance"
HEADER_REGION = "x-tokenfleet-region"


@dataclass(slots=True)
class Desk:
    """What handlers share: classification, placing, and the records of both."""

    options: RouterOptions
    tables: FleetTables
    placer: Placer
    journal: Journal
    metrics: RouterMetrics
    engines: Engines
    stopping: Callable[[], bool]
    estimators: Estimators = field(default_factory=Estimators)
    book: IntentBook = field(default_factory=IntentBook)
    in_flight: int = 0

    def classify(
        self, request: web.Request, path: str, raw: bytes, prompt_tokens: int | None = None
    ) -> tuple[Ask, IntentAttempt]:
        """What a request asks and which attempt of which intent it is. Raises Refusal."""
        at_ms = now_ms()
        ask = read_ask(
            headers=request.headers,
            path=path,
            raw=raw,
            body=parse_body(raw),
            policy=self.tables.policy,
            ready_endpoints=self.tables.ready_endpoints(at_ms),
            estimators=self.estimators,
            prompt_tokens=prompt_tokens,
        )
        return ask, self.begin(ask, at_ms)

    def begin(self, ask: Ask, at_ms: int) -> IntentAttempt:
        """Which attempt of which intent an ask is."""
        return self.book.begin(
            tenant=ask.tenant.tenant,
            key=ask.key,
            digest=ask.digest,
            fresh_id=self.journal.fresh_intent_id(),
            now_ms=at_ms,
            deadline_ms=ask.level.deadline_ms,
            claimed_attempt=ask.claimed_attempt,
            claimed_start_ms=ask.claimed_start_ms,
        )

    async def place(self, ask: Ask, intent: IntentAttempt, tried: set[Key]) -> tuple[Placement, Decision]:
        """A place and its decision, not yet sent. A refusal is logged and raised; a client's leaving too."""
        decision_id, seed = self.journal.next_id()
        started_ms = now_ms()
        deadline_at_ms = int(intent.started_at_ms + ask.deadline_ms)
        try:
            placement = await self.placer.place(ask, deadline_at_ms, tried, seed)
        except Refusal as refusal:
            await self._log_refusal(ask, intent, decision_id, seed, refusal, tried, started_ms)
            raise
        except asyncio.CancelledError:
            self._log_gone(ask, intent, decision_id, started_ms)
            raise
        sampled = seed % 1_000_000 < self.options.sample_ratio * 1_000_000
        try:
            given = self.placer.decision_input(placement.survey, ask) if sampled else None
            return placement, self.journal.decision(
                ask, intent, decision_id, where=placement.where, given=given
            )
        except BaseException:
            self.placer.release(placement, ok=False)
            raise

    async def _log_refusal(
        self,
        ask: Ask,
        intent: IntentAttempt,
        decision_id: str,
        seed: int,
        refusal: Refusal,
        tried: set[Key],
        started_ms: int,
    ) -> None:
        given = self.placer.decision_input(self.placer.survey(ask, tried, seed), ask)
        decision = self.journal.decision(ask, intent, decision_id, where=None, rule=refusal.rule, given=given)
        figures = Figures(status=refusal.status, queue_ms=float(max(0, now_ms() - started_ms)))
        outcome = self.journal.outcome(
            decision, "shed", started_at_ms=started_ms, rule=refusal.rule, figures=figures
        )
        refusal.decision_id = decision_id
        await self.journal.refuse(decision, outcome)

    def _log_gone(self, ask: Ask, intent: IntentAttempt, decision_id: str, started_ms: int) -> None:
        """The client left while its request waited for headroom: never dispatched, so never anywhere."""
        stopping = self.stopping()
        rule = "router_stopping" if stopping else "cancelled_while_queued"
        decision = self.journal.decision(ask, intent, decision_id, where=None, rule=rule)
        figures = Figures(queue_ms=float(max(0, now_ms() - started_ms)))
        self.journal.write_ahead(decision)
        self.journal.end(
            self.journal.outcome(
                decision,
                "failed" if stopping else "cancelled",
                started_at_ms=started_ms,
                rule=rule,
                figures=figures,
            )
        )

    def learn(self, ask: Ask, figures: Figures) -> None:
        """Take what an attempt that ended ok says about sizes."""
        if figures.output_tokens is not None:
            self.estimators.outputs.observe(ask.level.name, figures.output_tokens)
        if figures.prompt_tokens is not None:
            sizes = ask.sizes
            self.estimators.prompts.observe(
                ask.pool, sizes.text_bytes, sizes.token_ids, figures.prompt_tokens
            )


def headers_of(decision_id: str, intent: IntentAttempt, placement: Placement | None) -> dict[str, str]:
    """What every answer says of itself."""
    headers = {
        HEADER_DECISION: decision_id,
        HEADER_INTENT: intent.intent_id,
        HEADER_ATTEMPT: str(intent.attempt),
    }
    if placement is not None:
        headers |= {HEADER_INSTANCE: placement.member.instance, HEADER_REGION: placement.member.region}
    return headers


class Proxy:
    """The handler of ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request."""
        desk = self._desk
        raw = await request.read()
        ask, intent = desk.classify(request, request.path, raw)
        desk.in_flight += 1
        desk.metrics.in_flight.set(desk.in_flight)
        served = _Served(intent)
        try:
            return await self._serve(request, ask, raw, served)
        finally:
            desk.in_flight -= 1
            desk.metrics.in_flight.set(desk.in_flight)
            desk.book.ended(served.intent, ask.digest, ok=served.ok, now_ms=now_ms())

    async def _serve(self, request: web.Request, ask: Ask, raw: bytes, served: _Served) -> web.StreamResponse:
        desk = self._desk
        deps = AttemptDeps(
            desk.journal, desk.placer, desk.engines, desk.tables.suspects, desk.options, desk.stopping
        )
        tried: set[Key] = set()
        for number in range(1, desk.options.max_tries + 1):
            try:
                placement, decision = await desk.place(ask, served.intent, tried)
            except Refusal as refusal:
                desk.metrics.refusals.labels(str(refusal.status), refusal.rule).inc()
                return refusal.response(headers_of(refusal.decision_id, served.intent, None))
            headers = headers_of(decision.decision_id, served.intent, placement)
            attempt = Attempt(deps, request, ask, raw, placement, decision, headers)
            ended = await attempt.run(last=number == desk.options.max_tries)
            if not isinstance(ended, Retry):
                served.ok = attempt.cause == "ok"
                if served.ok:
                    desk.learn(ask, attempt.figures)
                return ended
            if ended.elsewhere:
                tried.add((placement.member.instance, placement.member.boot))
            served.intent = desk.book.next_attempt(ask.tenant.tenant, ask.key, served.intent)
        raise AssertionError("The last attempt always answers.")


@dataclass(slots=True)
class _Served:
    """How far an intent has come in this request."""

    intent: IntentAttempt
    ok: bool = False
