"""Admission: work enters under a lease, or waits for one within bounds, or is refused with the rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from minds.leases import Holder, Ticket
from minds.policy import CompiledPolicy
from minds.slomax.admission import (
    DEADLINE_UNREACHABLE,
    NO_LEASE_HEADROOM,
    PATIENCE_TTFT,
    QUEUE_FULL,
    AdmissionQueue,
    DrainRate,
    ServiceTimes,
    Waiting,
    retry_after_s,
    wait_ms,
)
from router.asks import Ask
from router.refusals import Refusal
from transport.clock import monotonic_ms, now_ms

_SENTENCES = {
    NO_LEASE_HEADROOM: "No capacity is free for this class right now; try again later.",
    QUEUE_FULL: "Too many requests of this class are waiting; try again later.",
    DEADLINE_UNREACHABLE: "The request would not be finished by its deadline.",
}


class AdmissionGate:
    """The shell around the lease holder and the queue. One a router; not shared between threads.

    ``on_want`` is called when a request finds no headroom, so that demand is reported soon; ``can_wait``
    says whether new leases may still come (False while the broker is away).
    """

    def __init__(
        self,
        holder: Holder,
        *,
        policy: Callable[[], CompiledPolicy],
        queue_limit: int,
        on_want: Callable[[], None] = lambda: None,
        can_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        self.holder = holder
        self._policy = policy
        self._queue: AdmissionQueue[Ticket] = AdmissionQueue(limit=queue_limit)
        self._futures: dict[Waiting, asyncio.Future[Ticket]] = {}
        self._drain = DrainRate()
        self._service = ServiceTimes()
        self._on_want = on_want
        self._can_wait = can_wait

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    async def admit(self, ask: Ask, regions: list[str], deadline_at_ms: int) -> Ticket:
        """A ticket for one of these regions, the first where there is headroom. Raises Refusal.

        Give the ticket back with ``release``, whatever happens. A cancelled wait leaves nothing behind.
        """
        at_ms = now_ms()
        service_class, work = ask.level.name, ask.sizes.work_tokens
        needs_ms = self._service.typical_ms(service_class) or 0.0
        if at_ms + needs_ms >= deadline_at_ms:
            raise self._refusal(ask, DEADLINE_UNREACHABLE, None)
        policy = self._policy()
        if not policy.capped(ask.pool) or not policy.admission_acts:
            return self.holder.admit_uncapped(regions[0], ask.pool, service_class, work)
        waiting = Waiting(
            service_class,
            ask.pool,
            tuple(regions),
            work,
            at_ms,
            deadline_at_ms,
            at_ms + PATIENCE_TTFT * ask.ttft_slo_ms,
        )
        ahead = self._queue.ahead(service_class, ask.pool, deadline_at_ms)
        if ahead == 0:
            for region in regions:
                if (ticket := self._try(waiting, region)) is not None:
                    return ticket
        self.holder.want(regions[0], ask.pool, service_class, work, monotonic_ms())
        self._on_want()
        predicted_ms = wait_ms(ahead + work, self._drain.per_ms(service_class, ask.pool, at_ms))
        if not self._can_wait():
            raise self._refusal(ask, NO_LEASE_HEADROOM, predicted_ms)
        if predicted_ms is not None and at_ms + predicted_ms + needs_ms > deadline_at_ms:
            raise self._refusal(ask, DEADLINE_UNREACHABLE, predicted_ms)
        if not self._queue.push(waiting):
            raise self._refusal(ask, QUEUE_FULL, predicted_ms)
        return await self._wait(ask, waiting, predicted_ms)

    async def _wait(self, ask: Ask, waiting: Waiting, predicted_ms: float | None) -> Ticket:
        future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._futures[waiting] = future
        until_ms = min(waiting.deadline_ms, waiting.give_up_ms)
        try:
            async with asyncio.timeout(max(0.0, until_ms - waiting.enqueued_ms) / 1000.0):
                return await future
        except TimeoutError:
            self._take_back(future)
            rule = NO_LEASE_HEADROOM if until_ms == waiting.give_up_ms else DEADLINE_UNREACHABLE
            raise self._refusal(ask, rule, predicted_ms) from None
        except asyncio.CancelledError:
            self._take_back(future)
            raise
        finally:
            self._futures.pop(waiting, None)
            self._queue.discard(waiting)

    def _take_back(self, future: asyncio.Future[Ticket]) -> None:
        """A ticket that arrived in the same moment as the end of the wait must not leak."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self.holder.finish(future.result())
            self.pump()

    def release(self, ticket: Ticket, *, service_ms: float | None = None) -> None:
        """The work ended; ``service_ms`` where it ended ok. Whoever waits may enter now."""
        if ticket.done:
            return
        self.holder.finish(ticket)
        self._drain.ended(ticket.service_class, ticket.pool, ticket.work_tokens, now_ms())
        if service_ms is not None:
            self._service.observe(ticket.service_class, service_ms)
        self.pump()

    def pump(self) -> None:
        """Let in whatever fits: after work ended, a lease came, or time passed."""
        if not len(self._queue):
            return
        admitted, refused = self._queue.pump(now_ms(), self._try, self._service.typical_ms)
        for waiting, ticket in admitted:
            future = self._futures.get(waiting)
            if future is None or future.done():
                self.holder.finish(ticket)
            else:
                future.set_result(ticket)
        for waiting, rule in refused:
            future = self._futures.get(waiting)
            if future is not None and not future.done():
                future.set_exception(Refusal(429, rule, _SENTENCES[rule], retry_after_s=1))

    def headroom(self, ask: Ask, regions: Iterable[str]) -> float | None:
        """Work tokens that could be admitted now over these regions; None where the pool has no cap."""
        if not self._policy().capped(ask.pool):
            return None
        at_ms = monotonic_ms()
        return sum(self.holder.headroom(region, ask.pool, ask.level.name, at_ms) for region in regions)

    def keep_wants_alive(self) -> None:
        """Demand that is noted fades within seconds; what still waits is still wanted."""
        at_ms = monotonic_ms()
        for region, pool, service_class in {(w.regions[0], w.pool, w.service_class) for w in self._queue}:
            self.holder.want(region, pool, service_class, 0.0, at_ms)

    def _try(self, waiting: Waiting, region: str) -> Ticket | None:
        at_ms = monotonic_ms()
        pool, service_class, work = waiting.pool, waiting.service_class, waiting.work_tokens
        # Asked first, since a refused `admit` notes demand, and a waiting request is asked about often.
        if self.holder.headroom(region, pool, service_class, at_ms) < work:
            return None
        given = self.holder.admit(region, pool, service_class, work, at_ms)
        return given if isinstance(given, Ticket) else None

    @staticmethod
    def _refusal(ask: Ask, rule: str, predicted_ms: float | None) -> Refusal:
        return Refusal(429, rule, _SENTENCES[rule], retry_after_s=retry_after_s(predicted_ms))
