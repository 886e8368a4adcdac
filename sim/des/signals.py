"""Signals as routers see them: sampled, late, lost and wrong; and each router's own corrections to them.

A :class:`SignalBoard` holds the last samples that have come through the log; they are the same for all
routers. A :class:`RouterSignals` adds what this router knows at once (its own dispatches and ends since the
sample) and what the log tells it later (the dispatches of the others). Only arrays of numbers are kept here,
no reference to an engine, so there is no way from a view to the truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from sim.des.instance import Reading
from sim.des.prefix_index import PrefixIndex

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNKNOWN_AFTER_MS = 60_000.0
"""A sample older than this says nothing any more."""


@dataclass(frozen=True, slots=True)
class SignalOptions:
    """How readings come to the routers.

    Every ``sample_every_ms`` all engines are read; a reading is lost with probability ``loss``, its figures
    are multiplied by ``exp(relative_error * N(0, 1))``, and it is seen ``delay_ms`` after it was taken. What
    one router does is seen by the others ``log_delay_ms`` later; that an instance came up or went away is
    seen by all ``registry_delay_ms`` later.
    """

    sample_every_ms: float = 250.0
    delay_ms: float = 50.0
    loss: float = 0.0
    relative_error: float = 0.0
    log_delay_ms: float = 50.0
    registry_delay_ms: float = 1_000.0

    def __post_init__(self) -> None:
        if not self.sample_every_ms > 0:
            raise ValueError(f"Engines must be sampled every so many ms above 0, not {self.sample_every_ms}.")
        for name in ("delay_ms", "relative_error", "log_delay_ms", "registry_delay_ms"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a finite number >= 0, not {getattr(self, name)}.")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"The share of lost samples must lie in 0..1, not {self.loss}.")


class SignalBoard:
    """The last samples that have come through. Columns have one entry for each instance.

    ``sampled_ms`` is -inf where none ever came; then the other columns are NaN, which is *unknown*, not 0.
    """

    def __init__(self, instances: int, options: SignalOptions, seed: int) -> None:
        self.options = options
        self.sampled_ms: Floats = np.full(instances, -inf)
        self.columns: Floats = np.full((4, instances), np.nan)  # waiting, running, kv usage, tokens in all
        self.generation = 0
        """Grows with every sample that is seen."""
        self._on_the_way: deque[tuple[float, float, NDArray[np.bool_], Floats]] = deque()
        self._rng = np.random.default_rng([seed, 0x51])

    def take(self, now_ms: float, readings: Sequence[Reading | None]) -> None:
        """Sample all instances now; None where one doesn't answer."""
        options = self.options
        answered = np.array([reading is not None for reading in readings])
        blank = (np.nan, np.nan, np.nan, np.nan)
        values = np.array([blank if reading is None else reading for reading in readings], dtype=float).T
        if options.loss > 0.0:
            answered &= self._rng.random(len(readings)) >= options.loss
        if options.relative_error > 0.0:
            values *= np.exp(options.relative_error * self._rng.standard_normal(values.shape))
            np.minimum(values[2], 1.0, out=values[2])
        self._on_the_way.append((now_ms + options.delay_ms, now_ms, answered, values))

    def advance(self, now_ms: float) -> None:
        """Let the samples be seen that have come by now."""
        arriving = self._on_the_way
        while arriving and arriving[0][0] <= now_ms:
            _, sampled_ms, answered, values = arriving.popleft()
            if answered.all():
                self.columns = values
                self.sampled_ms.fill(sampled_ms)
            else:
                self.columns[:, answered] = values[:, answered]
                self.sampled_ms[answered] = sampled_ms
            self.generation += 1

    def forget(self, instance: int) -> None:
        """A new process: what the old one said doesn't count."""
        self.columns[:, instance] = np.nan
        self.sampled_ms[instance] = -inf
        self.generation += 1


@dataclass(slots=True)
class Dispatch:
    """One dispatch of a router. ``tokens`` are those of its prompt."""

    instance: int
    sent_ms: float
    tokens: int
    own: bool
    ended: bool = False


class RouterSignals:
    """One router's corrections; columns have one entry for each instance.

    ``own_sent`` and ``own_sent_tokens``: own requests in flight that the sample can't have seen;
    ``own_ended``: own ones that it saw, but that have ended since; ``logged_sent`` and its tokens: dispatches
    of others since the sample, as far as the log has told.
    """

    def __init__(self, board: SignalBoard, index: PrefixIndex | None) -> None:
        count = len(board.sampled_ms)
        self.board = board
        self.index = index
        self.own_in_flight: Floats = np.zeros(count)
        self.sent: Floats = np.zeros((5, count))
        self.own_sent, self.own_sent_tokens, self.own_ended, self.logged_sent, self.logged_sent_tokens = self.sent
        self._generation = -1
        self._recent: deque[Dispatch] = deque()
        self._ended: deque[tuple[float, Dispatch]] = deque()
        self._inbox: deque[tuple[float, Dispatch, tuple[int, ...]]] = deque()

    def dispatched(self, now_ms: float, instance: int, tokens: int, blocks: tuple[int, ...]) -> Dispatch:
        """Own request sent now: known at once."""
        dispatch = Dispatch(instance, now_ms, tokens, own=True)
        self.own_in_flight[instance] += 1.0
        self.own_sent[instance] += 1.0
        self.own_sent_tokens[instance] += tokens
        self._recent.append(dispatch)
        if self.index is not None:
            self.index.placed(instance, blocks)
        return dispatch

    def ended(self, now_ms: float, dispatch: Dispatch) -> None:
        """An own request ended, however it did."""
        instance = dispatch.instance
        dispatch.ended = True
        self.own_in_flight[instance] -= 1.0
        if dispatch.sent_ms > self.board.sampled_ms[instance]:
            self.own_sent[instance] -= 1.0
            self.own_sent_tokens[instance] -= dispatch.tokens
        else:
            self.own_ended[instance] += 1.0
        self._ended.append((now_ms, dispatch))

    def told(self, visible_ms: float, dispatch: Dispatch, blocks: tuple[int, ...]) -> None:
        """Another router's dispatch, which the log will show at ``visible_ms``."""
        other = Dispatch(dispatch.instance, dispatch.sent_ms, dispatch.tokens, own=False)
        self._inbox.append((visible_ms, other, blocks))

    def forget(self, instance: int) -> None:
        """The instance's process is new: nothing of the old one is in it."""
        for dispatch in self._recent:
            if dispatch.instance == instance and not dispatch.own:
                dispatch.ended = True
        self._generation = -1
        if self.index is not None:
            self.index.forget(instance)

    def refresh(self, now_ms: float) -> None:
        """Bring all columns up to what can be known now."""
        self.board.advance(now_ms)
        if self.board.generation != self._generation:
            self._recount(now_ms)
        inbox = self._inbox
        while inbox and inbox[0][0] <= now_ms:
            _, dispatch, blocks = inbox.popleft()
            self._recent.append(dispatch)
            if dispatch.sent_ms > self.board.sampled_ms[dispatch.instance]:
                self.logged_sent[dispatch.instance] += 1.0
                self.logged_sent_tokens[dispatch.instance] += dispatch.tokens
            if self.index is not None:
                self.index.placed(dispatch.instance, blocks)

    def _recount(self, now_ms: float) -> None:
        self._generation = self.board.generation
        sampled_ms = self.board.sampled_ms
        horizon_ms = max(float(sampled_ms.min()), now_ms - UNKNOWN_AFTER_MS)
        self.sent.fill(0.0)
        self._recent = deque(d for d in self._recent if d.sent_ms > horizon_ms and not d.ended)
        for dispatch in self._recent:
            instance = dispatch.instance
            if dispatch.sent_ms > sampled_ms[instance]:
                count, tokens = (0, 1) if dispatch.own else (3, 4)
                self.sent[count, instance] += 1.0
                self.sent[tokens, instance] += dispatch.tokens
        while self._ended and self._ended[0][0] <= horizon_ms:
            self._ended.popleft()
        for end_ms, dispatch in self._ended:
            if dispatch.sent_ms <= sampled_ms[dispatch.instance] < end_ms:
                self.own_ended[dispatch.instance] += 1.0


class CandidatesView:
    """The instances that a policy may choose from; every column has one entry for each, in the same order.

    Readings that never came (or are older than a minute) are NaN: *unknown*, not idle.
    """

    def __init__(
        self, now_ms: float, instances: Ints, signals: RouterSignals, kv_tokens: Floats, engines: tuple[str, ...]
    ) -> None:
        self._now_ms = now_ms
        self._signals = signals
        self.instances = instances
        self._kv_tokens = kv_tokens
        self._engines = engines

    def __len__(self) -> int:
        return len(self.instances)

    @cached_property
    def age_ms(self) -> Floats:
        """Age of each sample; inf where there is none."""
        return self._now_ms - self._signals.board.sampled_ms[self.instances]

    @cached_property
    def _readings(self) -> Floats:
        readings = self._signals.board.columns[:, self.instances]
        old = self.age_ms > UNKNOWN_AFTER_MS
        if old.any():
            readings[:, old] = np.nan
        return readings

    @property
    def waiting(self) -> Floats:
        """Requests in the engine's queue at the sample."""
        return self._readings[0]

    @property
    def running(self) -> Floats:
        """Requests in the batch at the sample."""
        return self._readings[1]

    @property
    def kv_usage(self) -> Floats:
        """Share of KV memory in use at the sample, 0 to 1."""
        return self._readings[2]

    @property
    def generation_tokens(self) -> Floats:
        """Tokens generated since the process started, at the sample."""
        return self._readings[3]

    @property
    def own_in_flight(self) -> Floats:
        """This router's requests that have not ended."""
        return self._signals.own_in_flight[self.instances]

    @property
    def own_sent(self) -> Floats:
        """Own requests in flight that were sent after the sample."""
        return self._signals.own_sent[self.instances]

    @property
    def own_sent_tokens(self) -> Floats:
        """Prompt tokens of ``own_sent``."""
        return self._signals.own_sent_tokens[self.instances]

    @property
    def own_ended(self) -> Floats:
        """Own requests that the sample saw and that have ended since."""
        return self._signals.own_ended[self.instances]

    @property
    def logged_sent(self) -> Floats:
        """Dispatches of other routers after the sample, as far as the log has told."""
        return self._signals.logged_sent[self.instances]

    @property
    def logged_sent_tokens(self) -> Floats:
        """Prompt tokens of ``logged_sent``."""
        return self._signals.logged_sent_tokens[self.instances]

    @property
    def kv_tokens(self) -> Floats:
        """Tokens that each KV memory holds (configuration, not state)."""
        return self._kv_tokens[self.instances]

    @property
    def engines(self) -> list[str]:
        """Names of the engines' parameter sets (configuration, not state)."""
        return [self._engines[i] for i in self.instances]

    @cached_property
    def outstanding(self) -> Floats:
        """Running plus waiting, corrected by all that is known since; at least the own ones.

        Where nothing was read: the mean of the others, or the own count where there are none.
        """
        readings = self._readings
        sent = self._signals.sent[:, self.instances]
        estimate = np.maximum(readings[0] + readings[1] + sent[0] + sent[3] - sent[2], 0.0)
        unknown = np.isnan(estimate)
        if unknown.any():
            estimate[unknown] = 0.0 if unknown.all() else estimate[~unknown].mean()
        return np.maximum(estimate, self.own_in_flight)

    def matched_tokens(self, blocks: tuple[int, ...], block_tokens: int = 512) -> Floats:
        """Tokens of the prompt's blocks that each instance is *thought* to have cached.

        RuntimeError where the run keeps no prefix index (the policy's factory must ask for it).
        """
        index = self._signals.index
        if index is None:
            raise RuntimeError("This run keeps no prefix index; set needs_prefix on the policy set.")
        return index.matched_blocks(blocks)[self.instances] * float(block_tokens)


@dataclass(frozen=True, slots=True)
class RegionView:
    """One region as a router sees it from its entry region. ``outstanding`` is summed over instances."""

    region: int
    name: str
    rtt_ms: float
    egress_price_per_gb: float
    routable: int
    outstanding: float
    own_in_flight: float


class FleetView:
    """All regions as one router sees them."""

    def __init__(self, now_ms: float, router: RouterSideView) -> None:
        self.now_ms = now_ms
        self._router = router

    def __len__(self) -> int:
        return self._router.region_count()

    def candidates(self, region: int) -> CandidatesView:
        """The region's instances that may be chosen."""
        return self._router.candidates(self.now_ms, region)

    def region(self, region: int) -> RegionView:
        """Its summary."""
        candidates = self.candidates(region)
        name, rtt_ms, price = self._router.link(region)
        return RegionView(
            region,
            name,
            rtt_ms,
            price,
            len(candidates),
            float(candidates.outstanding.sum()),
            float(candidates.own_in_flight.sum()),
        )


class RouterSideView:
    """What a router knows of the fleet's layout: who may be chosen, and the links from its region."""

    def __init__(
        self,
        signals: RouterSignals,
        routable: list[Ints],
        links: Sequence[tuple[str, float, float]],
        kv_tokens: Floats,
        engines: tuple[str, ...],
    ) -> None:
        """``routable``: for each region its instances that may be chosen; the simulation keeps it up to date."""
        self._signals = signals
        self._routable = routable
        self._links = links
        self._kv_tokens = kv_tokens
        self._engines = engines

    def region_count(self) -> int:
        """How many regions there are."""
        return len(self._routable)

    def candidates(self, now_ms: float, region: int) -> CandidatesView:
        """The region's instances that may be chosen; may be empty."""
        return CandidatesView(now_ms, self._routable[region], self._signals, self._kv_tokens, self._engines)

    def link(self, region: int) -> tuple[str, float, float]:
        """``(name, RTT in ms, egress price per GB)`` of a region, from this router's."""
        return self._links[region]
