"""What waits for headroom: one earliest-deadline-first queue for each service class, bounded.

Leases are held per class, so classes don't compete here and none can starve another. A request leaves the
queue admitted, or refused with a rule: its deadline is predicted unreachable, or it waited too long to be
of use.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

QUEUE_FULL = "queue_full"
DEADLINE_UNREACHABLE = "deadline_unreachable"
NO_LEASE_HEADROOM = "no_lease_headroom"
QUEUE_LIMIT = 256
PATIENCE_TTFT = 2.0
"""A request waits at most twice its TTFT level: by then it can no longer be good, others still can."""

T = TypeVar("T")
"""What an admission yields (a lease ticket)."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue. Times in milliseconds of one clock, work in work tokens.

    ``regions`` are those where it may be admitted, the preferred one first.
    """

    service_class: str
    pool: str
    regions: tuple[str, ...]
    work_tokens: float
    enqueued_ms: float
    deadline_ms: float
    give_up_ms: float
    order: tuple[float, int] = field(default=(0.0, 0))


class ServiceTimes:
    """The typical time from dispatch to end of a class's finished requests: a fading mean, None at first."""

    WEIGHT = 0.05

    def __init__(self) -> None:
        self._mean_ms: dict[str, float] = {}

    def observe(self, service_class: str, service_ms: float) -> None:
        """Take a request that ended ok."""
        mean = self._mean_ms.get(service_class, service_ms)
        self._mean_ms[service_class] = mean + self.WEIGHT * (service_ms - mean)

    def typical_ms(self, service_class: str) -> float | None:
        """The mean, or None where none has ended yet."""
        return self._mean_ms.get(service_class)


class DrainRate:
    """Work that ends per millisecond for one class and pool, over the last ``span_ms``; unknown when few."""

    def __init__(self, *, span_ms: float = 10_000.0, at_least: int = 5) -> None:
        self._span_ms = span_ms
        self._at_least = at_least
        self._ended: dict[tuple[str, str], deque[tuple[float, float]]] = {}

    def ended(self, service_class: str, pool: str, work_tokens: float, now_ms: float) -> None:
        """An admitted request ended."""
        ended = self._ended.setdefault((service_class, pool), deque(maxlen=4096))
        ended.append((now_ms, work_tokens))
        self._forget(ended, now_ms)

    def per_ms(self, service_class: str, pool: str, now_ms: float) -> float | None:
        """Work tokens per millisecond, or None where fewer than ``at_least`` requests ended."""
        ended = self._ended.get((service_class, pool))
        if ended is None:
            return None
        self._forget(ended, now_ms)
        if len(ended) < self._at_least:
            return None
        rate = sum(work for _, work in ended) / max(1.0, now_ms - ended[0][0])
        return rate if rate > 0 else None

    def _forget(self, ended: deque[tuple[float, float]], now_ms: float) -> None:
        while ended and ended[0][0] < now_ms - self._span_ms:
            ended.popleft()


class AdmissionQueue(Generic[T]):
    """The queues of all classes."""

    def __init__(self, *, limit: int = QUEUE_LIMIT) -> None:
        self._limit = limit
        self._queues: dict[str, list[Waiting]] = {}
        self._order = count()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __iter__(self) -> Iterator[Waiting]:
        for queue in self._queues.values():
            yield from queue

    def push(self, waiting: Waiting) -> bool:
        """Put a request in its place; False where its class's queue is full."""
        queue = self._queues.setdefault(waiting.service_class, [])
        if len(queue) >= self._limit:
            return False
        waiting.order = (waiting.deadline_ms, next(self._order))
        bisect.insort(queue, waiting, key=lambda item: item.order)
        return True

    def discard(self, waiting: Waiting) -> None:
        """Its client is gone; a second call changes nothing."""
        queue = self._queues.get(waiting.service_class, [])
        for index, item in enumerate(queue):
            if item is waiting:
                del queue[index]
                return

    def ahead(self, service_class: str, pool: str, deadline_ms: float = math.inf) -> float:
        """Work tokens that wait in this class and pool with a deadline not later than this."""
        return sum(
            item.work_tokens
            for item in self._queues.get(service_class, ())
            if item.pool == pool and item.deadline_ms <= deadline_ms
        )

    def pump(
        self,
        now_ms: float,
        admit: Callable[[Waiting, str], T | None],
        typical_ms: Callable[[str], float | None],
    ) -> tuple[list[tuple[Waiting, T]], list[tuple[Waiting, str]]]:
        """Admit what fits, in order of deadlines, and give up what can't be served any more.

        ``admit(waiting, region)`` gives a ticket or None; after None nothing later overtakes in that class,
        pool and region, so large requests don't starve behind small ones. Returns the admitted with their
        tickets, and the refused with their rules; both have left the queue.
        """
        admitted: list[tuple[Waiting, T]] = []
        refused: list[tuple[Waiting, str]] = []
        for service_class, queue in self._queues.items():
            needs_ms = typical_ms(service_class) or 0.0
            full: set[tuple[str, str]] = set()
            kept: list[Waiting] = []
            for item in queue:
                if now_ms + needs_ms >= item.deadline_ms:
                    refused.append((item, DEADLINE_UNREACHABLE))
                elif now_ms > item.give_up_ms:
                    refused.append((item, NO_LEASE_HEADROOM))
                elif (ticket := self._try(item, admit, full)) is not None:
                    admitted.append((item, ticket))
                else:
                    kept.append(item)
            queue[:] = kept
        return admitted, refused

    @staticmethod
    def _try(
        item: Waiting, admit: Callable[[Waiting, str], T | None], full: set[tuple[str, str]]
    ) -> T | None:
        for region in item.regions:
            if (item.pool, region) in full:
                continue
            if (ticket := admit(item, region)) is not None:
                return ticket
            full.add((item.pool, region))
        return None


def wait_ms(ahead_work_tokens: float, drain_per_ms: float | None) -> float | None:
    """How long so much work takes to drain at this rate, or None where the rate is unknown."""
    return None if drain_per_ms is None else ahead_work_tokens / drain_per_ms


def retry_after_s(predicted_wait_ms: float | None) -> int:
    """What a refused client is told: the predicted wait in whole seconds, between 1 and 30."""
    return 1 if predicted_wait_ms is None else max(1, min(30, math.ceil(predicted_wait_ms / 1000.0)))
