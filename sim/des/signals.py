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
from math import inf

import numpy as np
from numpy.typing import NDArray

from sim.des.instance import Reading
from sim.des.prefix_index import PlacementLog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNKNOWN_AFTER_MS = 60_000.0
"""A sample older than this says nothing any more."""


@dataclass(frozen=True, slots=True)
class SignalOptions:
    """How readings come to the routers.

    Every ``sample_every_ms`` all engines are read; a reading is lost with probability ``loss``, its figures
    are multiplied by ``exp(relative_error * N(0, 1))``, each is missing (NaN: unknown) with probability
    ``missing``, and it is seen ``delay_ms`` after it was taken. Its time stamp is off by
    ``skew_ms * N(0, 1)``, a constant of each engine. What one router does is seen by the others
    ``log_delay_ms`` later; that an instance came up or went away is seen by all ``registry_delay_ms`` later.
    """

    sample_every_ms: float = 250.0
    delay_ms: float = 50.0
    loss: float = 0.0
    relative_error: float = 0.0
    missing: float = 0.0
    skew_ms: float = 0.0
    log_delay_ms: float = 50.0
    registry_delay_ms: float = 1_000.0

    def __post_init__(self) -> None:
        if not self.sample_every_ms > 0:
            raise ValueError(f"Engines must be sampled every so many ms above 0, not {self.sample_every_ms}.")
        for name in ("delay_ms", "relative_error", "skew_ms", "log_delay_ms", "registry_delay_ms"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a finite number >= 0, not {getattr(self, name)}.")
        for name in ("loss", "missing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"The share {name} must lie in 0..1, not {getattr(self, name)}.")


class SignalBoard:
    """The last samples that have come through. Columns have one entry for each instance.

    ``sampled_ms`` is -inf where none ever came; then the other columns are NaN, which is *unknown*, not 0.
    """

    def __init__(self, instances: int, options: SignalOptions, seed: int) -> None:
        self.options = options
        self.sampled_ms: Floats = np.full(instances, -inf)
        self.columns: Floats = np.full((4, instances), np.nan)  # waiting, running, kv usage, tokens in all
        self.outstanding: Floats = np.full(instances, np.nan)  # waiting plus running
        self.oldest_ms = -inf  # of all samples
        self.generation = 0
        """Grows with every sample that is seen."""
        self._on_the_way: deque[tuple[float, float, Sequence[Reading | None]]] = deque()
        self._rng = np.random.default_rng([seed, 0x51])
        self._skew_ms: Floats = options.skew_ms * np.random.default_rng([seed, 0x52]).standard_normal(
            instances
        )

    def take(self, now_ms: float, readings: Sequence[Reading | None]) -> None:
        """Sample all instances now; None where one doesn't answer."""
        self._on_the_way.append((now_ms + self.options.delay_ms, now_ms, readings))

    def advance(self, now_ms: float) -> None:
        """Let the samples be seen that have come by now."""
        arriving = self._on_the_way
        while arriving and arriving[0][0] <= now_ms:
            _, sampled_ms, readings = arriving.popleft()
            # Where nothing is lost or wrong, a sample that a newer one hides needn't be looked at.
            options = self.options
            exact = not (options.loss or options.relative_error or options.missing) and None not in readings
            if not (exact and arriving and arriving[0][0] <= now_ms and None not in arriving[0][2]):
                self._see(sampled_ms, readings)

    def _see(self, sampled_ms: float, readings: Sequence[Reading | None]) -> None:
        blank = (np.nan, np.nan, np.nan, np.nan)
        values = np.array([blank if reading is None else reading for reading in readings], dtype=float).T
        if self.options.relative_error > 0.0:
            values *= np.exp(self.options.relative_error * self._rng.standard_normal(values.shape))
            np.minimum(values[2], 1.0, out=values[2])
        if self.options.missing > 0.0:
            values[self._rng.random(values.shape) < self.options.missing] = np.nan
        if self.options.loss > 0.0 or None in readings:
            answered = np.array([reading is not None for reading in readings])
            answered &= self._rng.random(len(readings)) >= self.options.loss
            self.columns[:, answered] = values[:, answered]
            self.sampled_ms[answered] = (sampled_ms + self._skew_ms)[answered]
        else:
            self.columns = values
            self.sampled_ms = sampled_ms + self._skew_ms
        self._seen()

    def forget(self, instance: int) -> None:
        """A new process: what the old one said doesn't count."""
        self.columns[:, instance] = np.nan
        self.sampled_ms[instance] = -inf
        self._seen()

    def _seen(self) -> None:
        self.outstanding = self.columns[0] + self.columns[1]
        self.oldest_ms = float(self.sampled_ms.min())
        self.generation += 1


@dataclass(slots=True, eq=False)
class Dispatch:
    """One dispatch of a router. ``tokens`` are those of its prompt.

    ``uncached_tokens`` of them had to be computed, as the router guessed, with ``attention_ktok2`` squared
    thousands of tokens of attention.
    """

    instance: int
    sent_ms: float
    tokens: int
    own: bool
    ended: bool = False
    uncached_tokens: float = 0.0
    attention_ktok2: float = 0.0


class RouterSignals:
    """One router's corrections; columns have one entry for each instance.

    ``own_sent`` and ``own_sent_tokens``: own requests in flight that the sample can't have seen;
    ``own_ended``: own ones that it saw, but that have ended since; ``logged_sent`` and its tokens: dispatches
    of others since the sample, as far as the log has told. ``pending`` is the prefill that is under way or
    waiting (uncached tokens, and squared thousands of tokens of attention): own dispatches until their first
    token or end, which the router sees at once, and those of others as far as the log has told.
    """

    def __init__(self, board: SignalBoard, log: PlacementLog | None) -> None:
        count = len(board.sampled_ms)
        self.board = board
        self.log = log
        self.own_in_flight: Floats = np.zeros(count)
        self.sent: Floats = np.zeros((5, count))
        self.correction: Floats = np.zeros(count)  # own_sent + logged_sent - own_ended
        self.own_sent, self.own_sent_tokens, self.own_ended, self.logged_sent, self.logged_sent_tokens = (
            self.sent
        )
        self.pending: Floats = np.zeros((2, count))
        self._generation = -1
        self._recent: deque[Dispatch] = deque()
        self._ended: deque[tuple[float, Dispatch]] = deque()
        self._inbox: deque[tuple[float, Dispatch, bool]] = deque()  # True: its prefill is over
        self._pending: set[Dispatch] = set()
        self._matched: tuple[tuple[int, ...], Ints] | None = None  # the last answer, until anything changes
        self._own_placed: deque[tuple[float, int, tuple[int, ...]]] = deque()  # not in the log yet

    def dispatched(self, now_ms: float, instance: int, tokens: int, blocks: tuple[int, ...]) -> Dispatch:
        """Own request sent now: known at once."""
        cached = 0 if self.log is None or not blocks else int(self.matched_blocks(blocks)[instance]) * 512
        uncached = float(max(1, tokens - cached))
        attention = uncached * (tokens - 0.5 * uncached) * 1e-6
        dispatch = Dispatch(
            instance, now_ms, tokens, own=True, uncached_tokens=uncached, attention_ktok2=attention
        )
        self._begin(dispatch)
        self._matched = None
        self.own_in_flight[instance] += 1.0
        self.own_sent[instance] += 1.0
        self.own_sent_tokens[instance] += tokens
        self.correction[instance] += 1.0
        self._recent.append(dispatch)
        if self.log is not None and blocks:
            visible_ms = now_ms + self.board.options.log_delay_ms
            self.log.append(visible_ms, instance, blocks)
            self._own_placed.append((visible_ms, instance, blocks))
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
        self.correction[instance] -= 1.0
        self._ended.append((now_ms, dispatch))

    def prefilled(self, dispatch: Dispatch) -> None:
        """A dispatch's prefill is over: its first token came, or it ended. A second call changes nothing."""
        if dispatch in self._pending:
            self._pending.remove(dispatch)
            self.pending[0, dispatch.instance] -= dispatch.uncached_tokens
            self.pending[1, dispatch.instance] -= dispatch.attention_ktok2

    def _begin(self, dispatch: Dispatch) -> None:
        self._pending.add(dispatch)
        self.pending[0, dispatch.instance] += dispatch.uncached_tokens
        self.pending[1, dispatch.instance] += dispatch.attention_ktok2

    def told(self, visible_ms: float, dispatch: Dispatch, prefilled: bool = False) -> None:
        """Another router's dispatch (or that its prefill is over), which the log shows at ``visible_ms``."""
        self._inbox.append((visible_ms, dispatch, prefilled))

    def forget(self, instance: int) -> None:
        """The instance's process is new: nothing of the old one is in it."""
        for dispatch in self._recent:
            if dispatch.instance == instance and not dispatch.own:
                dispatch.ended = True
        self._generation = -1
        self._own_placed = deque(placed for placed in self._own_placed if placed[1] != instance)
        self._matched = None
        self._pending = {dispatch for dispatch in self._pending if dispatch.instance != instance}
        self.pending[:, instance] = 0.0

    def refresh(self, now_ms: float) -> None:
        """Bring all columns up to what can be known now."""
        self.board.advance(now_ms)
        if self.board.generation != self._generation:
            self._recount(now_ms)
        self._matched = None
        inbox = self._inbox
        while inbox and inbox[0][0] <= now_ms:
            _, theirs, prefilled = inbox.popleft()
            if prefilled:
                self.prefilled(theirs)
                continue
            self._begin(theirs)
            dispatch = Dispatch(theirs.instance, theirs.sent_ms, theirs.tokens, own=False)
            self._recent.append(dispatch)
            if dispatch.sent_ms > self.board.sampled_ms[dispatch.instance]:
                self.logged_sent[dispatch.instance] += 1.0
                self.logged_sent_tokens[dispatch.instance] += dispatch.tokens
                self.correction[dispatch.instance] += 1.0
        if self.log is not None:
            self.log.advance(now_ms)
            while self._own_placed and self._own_placed[0][0] <= now_ms:
                self._own_placed.popleft()

    def matched_blocks(self, blocks: tuple[int, ...]) -> Ints:
        """For every instance, how many leading blocks of a prompt it is *thought* to have.

        RuntimeError where the run keeps no placements (the policy set must ask for it).
        """
        if self.log is None:
            raise RuntimeError("This run keeps no placements; set needs_prefix on the policy set.")
        if self._matched is not None and self._matched[0] is blocks:
            return self._matched[1]
        matched = self.log.index.matched_blocks(blocks)
        for _, instance, placed in self._own_placed:
            depth = 0
            for mine, theirs in zip(blocks, placed, strict=False):
                if mine != theirs:
                    break
                depth += 1
            if depth > matched[instance]:
                matched[instance] = depth
        self._matched = (blocks, matched)
        return matched

    def _recount(self, now_ms: float) -> None:
        self._generation = self.board.generation
        # What an instance's own sample has seen, or is too old to matter, is dropped for good.
        since_ms = np.maximum(self.board.sampled_ms, now_ms - UNKNOWN_AFTER_MS).tolist()
        self.sent.fill(0.0)
        self._recent = deque(d for d in self._recent if not d.ended and d.sent_ms > since_ms[d.instance])
        for dispatch in self._recent:
            count, tokens = (0, 1) if dispatch.own else (3, 4)
            self.sent[count, dispatch.instance] += 1.0
            self.sent[tokens, dispatch.instance] += dispatch.tokens
        self._ended = deque(pair for pair in self._ended if pair[0] > since_ms[pair[1].instance])
        for _, dispatch in self._ended:
            if dispatch.sent_ms <= since_ms[dispatch.instance]:
                self.own_ended[dispatch.instance] += 1.0
        self.correction = self.own_sent + self.logged_sent - self.own_ended
