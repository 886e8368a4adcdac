"""What a policy is asked, what it may answer, and what it gets to see; and three plain policies.

A policy sees requests and instances only as :class:`RequestView` and :class:`CandidatesView`: the true output
length and the true state of an engine are in neither. A policy object belongs to one router and one pool (a
version of the model); it is made by a factory for each, so nothing is shared between routers but what the log
brings, and all that it sees of instances is its own pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, Protocol

from sim.des.views import CandidatesView, FleetView

RequestKey = int


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as its router sees it. Times are ms of the run's clock; tokens of the prompt only.

    ``number`` is the intent's row in the results, ``attempt`` counts from 1. ``blocks`` are the ids of the
    prompt's full 512-token blocks. ``deadline_ms`` is absolute, the SLOs count from ``first_attempt_ms``.
    ``version`` is that of the model; only instances of exactly this one are ever shown for it.
    """

    number: RequestKey
    attempt: int
    service_class: str
    tenant: str
    entry_region: int
    residency: str | None
    prompt_tokens: int
    blocks: tuple[int, ...]
    arrived_ms: float
    first_attempt_ms: float
    deadline_ms: float
    ttft_slo_ms: float
    tpot_slo_ms: float
    version: str = "1"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request is turned away: by which rule, and when to come again (None: don't)."""

    rule: str
    retry_after_ms: float | None = None


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """What a router knows of an attempt that ended: the engine's own usage report and the clock.

    ``end`` is ok, timeout, cancelled, failed or shed. ``output_tokens`` are those that were generated.
    ``instance`` is None where it was sent to none. ``ttft_ms`` counts from this attempt's start,
    ``dispatched_ms`` is when it was sent (the end of the attempt where it wasn't).
    """

    end: str
    instance: int | None
    started_ms: float
    dispatched_ms: float
    ended_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    output_tokens: int
    cached_tokens: int


ADMIT: Final = "admit"
HOLD: Final = "hold"
Verdict = Literal["admit", "hold"] | Refusal


class Balancer(Protocol):
    """Chooses the instance inside the region."""

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position in ``candidates`` (never empty), or a refusal."""

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """An attempt that was sent to an instance ended."""


class RegionChooser(Protocol):
    """Chooses the region among those that residency allows and that have an instance to offer."""

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """One of ``allowed`` (never empty, in order of RTT from the entry), or a refusal."""


class Admission(Protocol):
    """Decides who may enter, and may keep a queue of its own."""

    tick_ms: float | None
    """How often ``pump`` is called besides after every end; None: not at all."""

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """``ADMIT``, ``HOLD`` (it then comes out of ``pump``), or a refusal."""

    def pump(
        self, now_ms: float, fleet: FleetView
    ) -> Sequence[tuple[RequestKey, Literal["admit"] | Refusal]]:
        """Held requests (by number) that enter, or are given up, now."""

    def gone(self, now_ms: float, request: RequestView) -> None:
        """A held request's client left."""

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """An admitted attempt of this router ended."""


class AdmitAll:
    """Immediate dispatch: everyone enters."""

    tick_ms: float | None = None

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """Always ``ADMIT``."""
        return ADMIT

    def pump(
        self, now_ms: float, fleet: FleetView
    ) -> Sequence[tuple[RequestKey, Literal["admit"] | Refusal]]:
        """Nobody is held."""
        return ()

    def gone(self, now_ms: float, request: RequestView) -> None:
        """Nobody is held."""

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Nothing is counted."""


class NearestRegion:
    """The allowed region with the least RTT from the entry."""

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """The first of ``allowed``."""
        return allowed[0]


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The next in turn."""
        self._next += 1
        return (self._next - 1) % len(candidates)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Nothing is learned."""


class LeastOutstanding:
    """LOR: the least running plus waiting requests; ties are broken at random."""

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position of the least estimate."""
        outstanding = candidates.outstanding
        ties = (outstanding == outstanding.min()).nonzero()[0]
        return int(ties[0] if len(ties) == 1 else ties[rng.randrange(len(ties))])

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Nothing is learned."""


class PowerOfTwo:
    """P2C: the less loaded of two that are drawn at random (Mitzenmacher 2001)."""

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position of the less loaded of two different ones."""
        count = len(candidates)
        if count == 1:
            return 0
        one = rng.randrange(count)
        other = rng.randrange(count - 1)
        other += other >= one
        outstanding = candidates.outstanding
        return one if outstanding[one] <= outstanding[other] else other

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Nothing is learned."""


BALANCERS: Final[Mapping[str, Callable[[], Balancer]]] = {
    "rr": RoundRobin,
    "lor": LeastOutstanding,
    "p2c": PowerOfTwo,
}
"""The plain policies by name; each call makes one for one router."""
