"""Who asks, when, and how patiently: arrivals (open, closed, partly open) and what a client does next.

Open and closed arrivals rank policies differently (Schroeder, Wierman and Harchol-Balter, NSDI 2006), so an
experiment runs both. No public trace has retries, cancels or sessions with think time: all of them are
synthesised here, from a seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Protocol

from sim.workloads.plan import IntentSpec

Arrival = tuple[float, IntentSpec]
"""When (ms) and what."""


class Arrivals(Protocol):
    """A source of intents."""

    def start(self) -> Iterator[Arrival]:
        """Arrivals that depend on nothing, in order of time; read as they come, so it may be long."""

    def after(self, spec: IntentSpec, ended_ms: float) -> Arrival | None:
        """What follows when this intent has ended, however it did."""


class OpenArrivals:
    """Every intent at its own time, whatever became of the ones before."""

    def __init__(self, specs: Iterable[IntentSpec]) -> None:
        self._specs = specs

    def start(self) -> Iterator[Arrival]:
        """All of them."""
        return ((spec.at_ms, spec) for spec in self._specs)

    def after(self, spec: IntentSpec, ended_ms: float) -> Arrival | None:
        """Nothing."""
        return None


class PartlyOpenArrivals:
    """Sessions start at their own time; within one, the next turn waits for the answer and some thought."""

    def __init__(self, sessions: Iterable[Sequence[IntentSpec]], *, think_ms: float, seed: int) -> None:
        """``sessions`` in order of their first turns; ``think_ms`` is the mean of an exponential pause."""
        if not 0 <= think_ms < inf:
            raise ValueError(f"The think time must be a finite number of ms >= 0, not {think_ms}.")
        self._sessions = sessions
        self._think_ms = think_ms
        self._rng = Random(f"think-{seed}")
        self._next: dict[str, Iterator[IntentSpec]] = {}

    def start(self) -> Iterator[Arrival]:
        """The first turn of every session."""
        for session in self._sessions:
            turns = iter(session)
            spec = next(turns, None)
            if spec is not None:
                self._next[spec.intent_id] = turns
                yield spec.at_ms, spec

    def after(self, spec: IntentSpec, ended_ms: float) -> Arrival | None:
        """The next turn of the same session."""
        turns = self._next.pop(spec.intent_id)
        following = next(turns, None)
        if following is None:
            return None
        self._next[following.intent_id] = turns
        return ended_ms + self._pause_ms(), following

    def _pause_ms(self) -> float:
        return self._rng.expovariate(1.0 / self._think_ms) if self._think_ms > 0 else 0.0


class ClosedArrivals(PartlyOpenArrivals):
    """A fixed number of users: whoever has ended a session begins the next. Their own times are unused."""

    def __init__(
        self, sessions: Iterable[Sequence[IntentSpec]], *, users: int, think_ms: float, seed: int
    ) -> None:
        """``users`` start spread over one think time. ValueError for less than one user."""
        super().__init__(sessions, think_ms=think_ms, seed=seed)
        if users < 1:
            raise ValueError(f"A closed workload needs at least one user, not {users}.")
        self._users = users
        self._queue: deque[Sequence[IntentSpec]] = deque()

    def start(self) -> Iterator[Arrival]:
        """The first turn of every user."""
        self._queue = deque(session for session in self._sessions if session)
        begins_ms = sorted(self._rng.uniform(0.0, max(self._think_ms, 1.0)) for _ in range(self._users))
        for begin_ms in begins_ms:
            arrival = self._begin(begin_ms)
            if arrival is not None:
                yield arrival

    def after(self, spec: IntentSpec, ended_ms: float) -> Arrival | None:
        """The next turn, or the first one of the next session."""
        return super().after(spec, ended_ms) or self._begin(ended_ms + self._pause_ms())

    def _begin(self, at_ms: float) -> Arrival | None:
        if not self._queue:
            return None
        turns = iter(self._queue.popleft())
        spec = next(turns)
        self._next[spec.intent_id] = turns
        return at_ms, spec


def sessions_of(specs: Sequence[IntentSpec]) -> list[list[IntentSpec]]:
    """Conversations in order of their first turns: intents that share their second prefix block.

    See :func:`conversation_of`.
    """
    sessions: dict[tuple[str, int], list[IntentSpec]] = {}
    for number, spec in enumerate(specs):
        sessions.setdefault(conversation_of(spec, number), []).append(spec)
    return list(sessions.values())


def conversation_of(spec: IntentSpec, number: int) -> tuple[str, int]:
    """What names a conversation: its second prefix block.

    The first block says nothing, since all prompts may share it; a prompt of less than two blocks is a
    conversation of its own (by ``number``).
    """
    return ("block", spec.prefix_blocks[1]) if len(spec.prefix_blocks) > 1 else ("row", number)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How patient clients are. All times in ms.

    The wait for a first token (the class's client timeout) is counted anew for each attempt, the deadline
    from the first one. After an attempt that ended in one of ``retry_on`` there are up to ``max_retries``
    more, after a backoff that doubles from ``backoff_ms`` to ``backoff_cap_ms`` with equal jitter (Brooker,
    "Exponential Backoff and Jitter"), or what the refusal said, whichever is longer. A share of
    ``cancel_share`` leaves on purpose, after U(0, ``cancel_within_ms``) from its first attempt.
    """

    max_retries: int = 2
    backoff_ms: float = 500.0
    backoff_cap_ms: float = 8_000.0
    retry_on: frozenset[str] = frozenset({"timeout", "failed", "shed"})
    cancel_share: float = 0.0
    cancel_within_ms: float = 10_000.0

    def __post_init__(self) -> None:
        if self.max_retries < 0 or not 0 <= self.cancel_share <= 1:
            raise ValueError(
                f"Clients retry at least 0 times and cancel a share in 0..1, not {self.max_retries} and "
                f"{self.cancel_share}."
            )
        if not 0 < self.backoff_ms <= self.backoff_cap_ms < inf or not 0 < self.cancel_within_ms < inf:
            raise ValueError(
                "Backoff and cancel times must be finite and above 0 ms, the backoff under its cap."
            )
        unknown = self.retry_on - {"timeout", "failed", "shed"}
        if unknown:
            raise ValueError(f"Clients can retry on timeout, failed and shed, not on {sorted(unknown)[0]!r}.")

    def retry_wait_ms(
        self, end: str, attempts: int, retry_after_ms: float | None, rng: Random
    ) -> float | None:
        """The pause before the next attempt after ``attempts`` of them, or None: no more."""
        if end not in self.retry_on or attempts > self.max_retries:
            return None
        ceiling_ms = min(self.backoff_cap_ms, self.backoff_ms * 2.0 ** (attempts - 1))
        return max(rng.uniform(0.5 * ceiling_ms, ceiling_ms), retry_after_ms or 0.0)

    def cancel_after_ms(self, rng: Random) -> float | None:
        """When this intent's client leaves, from its first attempt; None: it doesn't."""
        if self.cancel_share <= 0.0 or rng.random() >= self.cancel_share:
            return None
        return rng.uniform(0.0, self.cancel_within_ms)
