"""Decisions and outcomes to the log. A decision is written ahead of the answer, within a bounded wait."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Protocol

from minds.identity import IntentAttempt
from minds.seeds import mix64
from router.asks import Ask
from router.metrics import RouterMetrics
from schemas.base import Event
from schemas.decisions import Decision, DecisionInput
from schemas.outcomes import Cause, Outcome
from schemas.topics import DECISIONS, OUTCOMES, Topic
from transport.clock import now_ms

SEED_BITS = 53


class EventSink(Protocol):
    """What the journal needs of transport.producer.EventProducer."""

    @property
    def healthy(self) -> bool: ...

    def emit(self, topic: Topic, event: Event) -> None: ...

    async def emit_acked(self, topic: Topic, event: Event) -> None: ...


@dataclass(frozen=True, slots=True)
class Where:
    """Where an attempt was sent."""

    region: str
    instance: str
    instance_boot: str
    lease_id: str | None


@dataclass(slots=True)
class Figures:
    """What was measured of an attempt; None where nobody could. Instants are epoch ms."""

    status: int | None = None
    queue_ms: float | None = None
    first_token_at_ms: int | None = None
    last_token_at_ms: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Journal:
    """Writes one router's decisions and outcomes and mints their ids."""

    def __init__(
        self,
        events: EventSink,
        *,
        router: str,
        boot: str,
        entry_region: str,
        ack_wait_ms: float,
        metrics: RouterMetrics,
    ) -> None:
        self._events = events
        self._router = router
        self._boot = boot
        self._entry_region = entry_region
        self._ack_wait_s = ack_wait_ms / 1000.0
        self._metrics = metrics
        self._numbers = itertools.count()
        self._seed_base = mix64(int.from_bytes(f"{router}/{boot}".encode()[-16:], "big"))
        self._pending: set[asyncio.Task[None]] = set()
        self.acks_late = False
        """True from an acknowledgement that did not come in time until one arrives again."""

    @property
    def degraded(self) -> bool:
        """While True no answer waits for the broker."""
        return self.acks_late or not self._events.healthy

    def next_id(self) -> tuple[str, int]:
        """A fresh decision id, unique over all routers and boots, and the decision's seed."""
        number = next(self._numbers)
        return f"{self._router}:{self._boot}:{number:x}", mix64(self._seed_base + number) >> (64 - SEED_BITS)

    def fresh_intent_id(self) -> str:
        """An id for an intent that no key names."""
        return f"i:{self._router}:{self._boot}:{next(self._numbers):x}"

    def decision(
        self,
        ask: Ask,
        intent: IntentAttempt,
        decision_id: str,
        *,
        where: Where | None,
        rule: str | None = None,
        given: DecisionInput | None = None,
    ) -> Decision:
        """The decision event: dispatched where there is a ``where``, else shed by ``rule``."""
        return Decision(
            decision_id=decision_id,
            intent_id=intent.intent_id,
            intent_inferred=intent.inferred,
            attempt=intent.attempt,
            at_ms=now_ms(),
            intent_started_at_ms=intent.started_at_ms,
            deadline_at_ms=int(intent.started_at_ms + ask.deadline_ms),
            router=self._router,
            router_boot=self._boot,
            tenant=ask.tenant.tenant,
            service_class=ask.level.name,
            pool=ask.pool,
            entry_region=self._entry_region,
            residency=ask.residency,
            verdict="shed" if where is None else "dispatched",
            rule=rule,
            region=where.region if where else None,
            instance=where.instance if where else None,
            instance_boot=where.instance_boot if where else None,
            lease_id=where.lease_id if where else None,
            estimated_prompt_tokens=ask.sizes.prompt_tokens,
            ttft_slo_ms=ask.ttft_slo_ms,
            tpot_slo_ms=ask.tpot_slo_ms,
            work_tokens=ask.sizes.work_tokens,
            input=given,
        )

    def write_ahead(self, decision: Decision) -> asyncio.Task[None]:
        """Send the decision; see ``acked``. It goes out even where the request itself is cancelled."""
        return self._send(DECISIONS, decision)

    async def acked(self, *sent: asyncio.Task[None]) -> None:
        """Wait until the broker has these, at most ``ack_wait_ms``, and not at all while degraded."""
        if self.degraded or not (waiting := [task for task in sent if not task.done()]):
            return
        _, late = await asyncio.wait(waiting, timeout=self._ack_wait_s)
        if late:
            self.acks_late = True
            self._metrics.ack_timeouts.inc()

    def outcome(
        self,
        decision: Decision,
        cause: Cause,
        *,
        started_at_ms: int,
        rule: str | None = None,
        figures: Figures | None = None,
        at_ms: int | None = None,
    ) -> Outcome:
        """The outcome of this decision's attempt, from its own figures. See schemas.outcomes."""
        figures = figures or Figures()
        at_ms = at_ms or now_ms()
        intent_start = decision.intent_started_at_ms
        ttft_ms, tpot_ms = figures.ttft_ms, figures.tpot_ms
        if ttft_ms is None and figures.first_token_at_ms is not None:
            ttft_ms = float(max(0, figures.first_token_at_ms - intent_start))
        tokens = figures.output_tokens
        first, last = figures.first_token_at_ms, figures.last_token_at_ms
        if tpot_ms is None and first is not None and last is not None and tokens is not None and tokens > 1:
            tpot_ms = max(0, last - first) / (tokens - 1)
        e2e_ms = float(max(0, at_ms - intent_start))
        return Outcome(
            decision_id=decision.decision_id,
            intent_id=decision.intent_id,
            intent_inferred=decision.intent_inferred,
            attempt=decision.attempt,
            router=decision.router,
            router_boot=decision.router_boot,
            tenant=decision.tenant,
            service_class=decision.service_class,
            pool=decision.pool,
            entry_region=decision.entry_region,
            residency=decision.residency,
            region=decision.region,
            instance=decision.instance,
            instance_boot=decision.instance_boot,
            cause=cause,
            rule=rule,
            status=figures.status,
            at_ms=at_ms,
            intent_started_at_ms=intent_start,
            started_at_ms=started_at_ms,
            first_token_at_ms=first,
            queue_ms=figures.queue_ms,
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            e2e_ms=e2e_ms,
            prompt_tokens=figures.prompt_tokens,
            cached_tokens=figures.cached_tokens,
            output_tokens=tokens,
            wasted_tokens=None if tokens is None else (0 if cause == "ok" else tokens),
            ttft_slo_ms=decision.ttft_slo_ms,
            tpot_slo_ms=decision.tpot_slo_ms,
            deadline_at_ms=decision.deadline_at_ms,
            within_slo=cause == "ok" and _within(decision, ttft_ms, tpot_ms, e2e_ms, tokens),
            predicted_ttft_ms=decision.predicted_ttft_ms,
            predicted_tpot_ms=decision.predicted_tpot_ms,
            work_tokens=decision.work_tokens,
        )

    def end(self, outcome: Outcome) -> None:
        """Log an outcome without waiting."""
        self._count(outcome)
        self._events.emit(OUTCOMES, outcome)

    async def refuse(self, decision: Decision, outcome: Outcome) -> None:
        """Log a refusal; returns when the broker has both events, or the bound is over."""
        self._count(outcome)
        await self.acked(self._send(DECISIONS, decision), self._send(OUTCOMES, outcome))

    def _send(self, topic: Topic, event: Event) -> asyncio.Task[None]:
        task = asyncio.create_task(self._acknowledged(topic, event), name=f"ack-{topic.name}")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    async def _acknowledged(self, topic: Topic, event: Event) -> None:
        try:
            await self._events.emit_acked(topic, event)
        except (RuntimeError, OSError):  # dropped from a full buffer, or closing: counted by the producer
            self.acks_late = True
        else:
            self.acks_late = False

    def _count(self, outcome: Outcome) -> None:
        self._metrics.attempts.labels(outcome.service_class, outcome.cause).inc()
        if outcome.output_tokens:
            self._metrics.output_tokens.labels(outcome.service_class).inc(outcome.output_tokens)
        if outcome.ttft_ms is not None:
            self._metrics.ttft_seconds.labels(outcome.service_class).observe(outcome.ttft_ms / 1000.0)
        if outcome.queue_ms is not None:
            self._metrics.queue_seconds.labels(outcome.service_class).observe(outcome.queue_ms / 1000.0)


def _within(
    decision: Decision, ttft_ms: float | None, tpot_ms: float | None, e2e_ms: float, tokens: int | None
) -> bool:
    """Within the class's levels. An answer that came in one piece has no first token to time: it is within
    where even its last token came by the time that both levels allow for it."""
    if ttft_ms is None:
        return e2e_ms <= decision.ttft_slo_ms + decision.tpot_slo_ms * max(0, (tokens or 1) - 1)
    return ttft_ms <= decision.ttft_slo_ms and (tpot_ms is None or tpot_ms <= decision.tpot_slo_ms)
