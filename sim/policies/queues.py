"""Admission with a queue: the static cap with our own EDF queue, SMG's classes, llm-d's saturation gate.

A limit is given for each instance; the limit of a router is that times the routable instances of the regions
that it serves, divided by its share of the routers (``routers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Literal

from minds.slomax.admission import AdmissionQueue, ServiceTimes, Waiting
from sim.des.policy import ADMIT, HOLD, OutcomeView, Refusal, RequestKey, RequestView, Verdict
from sim.des.views import FleetView
from sim.policies.scored import known

Entering = tuple[RequestKey, Literal["admit"] | Refusal]
INTERACTIVE_TTFT_MS = 2_500.0
LOW_PRIORITY_TTFT_MS = 10_000.0
"""A class whose TTFT level is this lax or laxer may be shed first: it is batch work."""


def routable(fleet: FleetView) -> int:
    """Instances of the whole fleet that may be chosen."""
    return sum(len(fleet.candidates(region)) for region in range(len(fleet)))


def priority_rank(request: RequestView) -> int:
    """0 for interactive, 1 for what may take longer, 2 for batch: by the TTFT level of the class."""
    if request.ttft_slo_ms >= LOW_PRIORITY_TTFT_MS:
        return 2
    return 0 if request.ttft_slo_ms <= INTERACTIVE_TTFT_MS else 1


class RetryBudget:
    """Retries may be at most ``share`` of the first attempts, with a bucket of so many in reserve."""

    def __init__(self, share: float, bucket: float = 20.0) -> None:
        self._share = share
        self._bucket = self._tokens = bucket

    def allows(self, request: RequestView) -> bool:
        """Whether this attempt may go on; a first one always may."""
        if request.attempt == 1:
            self._tokens = min(self._bucket, self._tokens + self._share)
            return True
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class StaticCap:
    """A cap on requests in flight, one pooled EDF queue before it, deadline shedding, a retry budget.

    The queue is :class:`minds.slomax.admission.AdmissionQueue`. The order is by the time at which a first
    token is due; who can't get one in time any more, by the mean time from dispatch to first token of its
    class, is given up with a clear refusal.
    """

    tick_ms: float | None = 100.0

    def __init__(
        self,
        cap: float = 128.0,
        retry_share: float = 0.1,
        slack: float = 0.75,
        routers: float = 1.0,
    ) -> None:
        """``slack``: the share of the TTFT level by which a first token must be likely, by the mean time from
        dispatch to first token; who can't is given up. At 1 half of those who enter last come too late,
        which costs a fifth of the goodput at 1.4 of the knee (docs/yardstick.md)."""
        self._cap = cap / routers
        self._slack = slack
        self._budget = RetryBudget(retry_share)
        self._queue: AdmissionQueue[int] = AdmissionQueue(limit=100_000)
        self._times = ServiceTimes()
        self._held: dict[RequestKey, Waiting] = {}
        self._keys: dict[int, RequestKey] = {}
        self._in_flight = 0
        self._earliest_ms = inf  # no deadline in the queue is before this

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """At once where nobody waits and the cap has room; else into the queue."""
        if not self._budget.allows(request):
            return Refusal("retry_budget")
        due_ms = request.first_attempt_ms + self._slack * request.ttft_slo_ms
        needs_ms = self._times.typical_ms(request.service_class) or 0.0
        if now_ms + needs_ms > due_ms:
            return Refusal("deadline_unreachable")
        if not self._held and self._in_flight < self._cap * routable(fleet):
            self._in_flight += 1
            return ADMIT
        waiting = Waiting("pooled", "", ("",), 1.0, now_ms, due_ms - needs_ms, due_ms)
        self._queue.push(waiting)
        self._held[request.number] = waiting
        self._keys[id(waiting)] = request.number
        self._earliest_ms = min(self._earliest_ms, waiting.deadline_ms)
        return HOLD

    def pump(self, now_ms: float, fleet: FleetView) -> Sequence[Entering]:
        """Those that fit now, in order of deadlines, and those whose deadline is out of reach."""
        if not self._held:
            return ()
        room = [self._cap * routable(fleet) - self._in_flight]
        if room[0] < 1.0 and now_ms < self._earliest_ms:
            return ()

        def take(waiting: Waiting, region: str) -> int | None:
            if room[0] < 1.0:
                return None
            room[0] -= 1.0
            return 1

        admitted, refused = self._queue.pump(now_ms, take, lambda name: 0.0)
        self._in_flight += len(admitted)
        entering: list[Entering] = [(self._forget(waiting), ADMIT) for waiting, _ in admitted]
        entering += [(self._forget(waiting), Refusal(rule)) for waiting, rule in refused]
        self._earliest_ms = min((waiting.deadline_ms for waiting in self._held.values()), default=inf)
        return entering

    def _forget(self, waiting: Waiting) -> RequestKey:
        key = self._keys.pop(id(waiting))
        del self._held[key]
        return key

    def gone(self, now_ms: float, request: RequestView) -> None:
        """Its client left the queue."""
        waiting = self._held.get(request.number)
        if waiting is not None:
            self._queue.discard(waiting)
            self._forget(waiting)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """A place is free; the time to the first token is learned."""
        self._in_flight -= 1
        if outcome.ttft_ms is not None and outcome.end == "ok":
            dispatch_ms = outcome.ttft_ms - self._waited_ms(request, outcome)
            self._times.observe(request.service_class, dispatch_ms)

    def _waited_ms(self, request: RequestView, outcome: OutcomeView) -> float:
        return max(0.0, outcome.dispatched_ms - outcome.started_ms)


class SmgClasses:
    """SMG's priority classes: floors and shares of the slots, a bounded queue with a timeout for each class.

    Interactive has at least a quarter of the slots, long a tenth; the rest is for whoever comes, in order of
    priority. Who has waited for its promotion time goes first. A full queue is a 429, a timeout in it a 408.
    """

    tick_ms: float | None = 200.0
    _LIMITS = ((256, 30_000.0, 5_000.0), (512, 60_000.0, 30_000.0), (1024, 300_000.0, 120_000.0))

    def __init__(self, slots: float = 128.0, floor_share: float = 0.25, routers: float = 1.0) -> None:
        """``slots`` of each instance; ``floor_share``: interactive's floor (of all slots)."""
        self._slots = slots / routers
        self._floors = (floor_share, 0.1, 0.0)
        self._in_flight = [0, 0, 0]
        self._queues: tuple[dict[RequestKey, float], ...] = ({}, {}, {})

    def _room(self, rank: int, slots: float) -> bool:
        kept = sum(
            max(0.0, self._floors[other] * slots - self._in_flight[other])
            for other in range(3)
            if other != rank
        )
        return sum(self._in_flight) + kept < slots

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """A slot, a place in the queue, or a refusal."""
        rank = priority_rank(request)
        if not self._queues[rank] and self._room(rank, self._slots * routable(fleet)):
            self._in_flight[rank] += 1
            return ADMIT
        if len(self._queues[rank]) >= self._LIMITS[rank][0]:
            return Refusal("queue_full", 1_000.0)
        self._queues[rank][request.number] = now_ms
        return HOLD

    def pump(self, now_ms: float, fleet: FleetView) -> Sequence[Entering]:
        """Timeouts first, then the promoted, then by priority."""
        entering: list[Entering] = []
        for rank, queue in enumerate(self._queues):
            timeout_ms = self._LIMITS[rank][1]
            late = [key for key, since_ms in queue.items() if now_ms - since_ms > timeout_ms]
            for key in late:
                del queue[key]
                entering.append((key, Refusal("queue_timeout")))
        slots = self._slots * routable(fleet)
        while True:
            ranks = [rank for rank in range(3) if self._queues[rank] and self._room(rank, slots)]
            if not ranks:
                return entering
            rank = min(ranks, key=lambda r: (not self._promoted(r, now_ms), r))
            key = next(iter(self._queues[rank]))
            del self._queues[rank][key]
            self._in_flight[rank] += 1
            entering.append((key, ADMIT))

    def _promoted(self, rank: int, now_ms: float) -> bool:
        return now_ms - next(iter(self._queues[rank].values())) > self._LIMITS[rank][2]

    def gone(self, now_ms: float, request: RequestView) -> None:
        """Its client left the queue."""
        self._queues[priority_rank(request)].pop(request.number, None)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """A slot is free."""
        self._in_flight[priority_rank(request)] -= 1


class Saturation:
    """llm-d: hold while the pool is saturated; batch work is shed by chance as saturation rises.

    Saturation is the mean over endpoints of ``max(queue/queue_limit, kv/kv_limit)``; an endpoint whose sample
    is older than ``stale_ms`` counts as saturated. Bands of 5,000 requests, 60 s in the queue at most. The
    shedding probability of low priority is ``min(saturation^5 * 300, 1)``.
    """

    tick_ms: float | None = 100.0
    _BAND, _TTL_MS = 5_000, 60_000.0

    def __init__(
        self,
        queue_limit: float = 5.0,
        kv_limit: float = 0.8,
        stale_ms: float = 200.0,
        shed_gain: float = 300.0,
        routers: float = 1.0,
    ) -> None:
        self._queue_limit, self._kv_limit = queue_limit, kv_limit
        self._stale_ms, self._gain = stale_ms, shed_gain
        self._queues: tuple[dict[RequestKey, float], ...] = ({}, {}, {})
        self._rng = Random("llm-d shedding")

    def saturation(self, fleet: FleetView) -> float:
        """The mean over all endpoints; 1 where there is none."""
        total, count = 0.0, 0
        for region in range(len(fleet)):
            view = fleet.candidates(region)
            queue = known(view.waiting) / self._queue_limit
            kv = known(view.kv_usage) / self._kv_limit
            for waiting, usage, age_ms in zip(queue, kv, view.age_ms, strict=True):
                total += 1.0 if age_ms > self._stale_ms else max(float(waiting), float(usage))
                count += 1
        return total / count if count else 1.0

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """By chance for low priority, else at once while the pool isn't saturated and nobody waits."""
        saturation = self.saturation(fleet)
        rank = priority_rank(request)
        if rank == 2 and self._rng.random() < min(saturation**5 * self._gain, 1.0):
            return Refusal("saturated", 1_000.0)
        if saturation < 1.0 and not any(self._queues[: rank + 1]):
            return ADMIT
        if len(self._queues[rank]) >= self._BAND:
            return Refusal("queue_full", 1_000.0)
        self._queues[rank][request.number] = now_ms
        return HOLD

    def pump(self, now_ms: float, fleet: FleetView) -> Sequence[Entering]:
        """Timeouts, then by priority: one for each endpoint below saturation, since samples lag behind."""
        entering: list[Entering] = []
        for queue in self._queues:
            late = [key for key, since_ms in queue.items() if now_ms - since_ms > self._TTL_MS]
            for key in late:
                del queue[key]
                entering.append((key, Refusal("queue_timeout")))
        if not any(self._queues) or self.saturation(fleet) >= 1.0:
            return entering
        for _ in range(routable(fleet)):
            waiting = next((queue for queue in self._queues if queue), None)
            if waiting is None:
                break
            key = next(iter(waiting))
            del waiting[key]
            entering.append((key, ADMIT))
        return entering

    def gone(self, now_ms: float, request: RequestView) -> None:
        """Its client left the queue."""
        self._queues[priority_rank(request)].pop(request.number, None)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Nothing is counted."""
