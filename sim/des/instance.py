"""A fast simulated engine: the scheduler of :mod:`sim.engine`, many decode-only steps advanced in one piece.

Between two events (a prefill, a finish, a shortage of KV memory, an arrival, a cancel) every step gives one
token to each of B decoding sequences, so step i (from 0) of such a run takes ``d0 + i*g`` with
``d0 = a + b*B + c*KV`` and ``g = c*B`` (KV in thousands of resident tokens), and i steps end after
``i*d0 + g*i*(i-1)/2``. An arrival or a cancel in mid-run cuts the run at the step in progress. Tests hold
this equal to plain stepping (``max_run_steps=1``) and to :class:`sim.engine.scheduler.EngineScheduler`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple, Protocol

from sim.des.batch import Batch
from sim.des.block_pool import BlockPool
from sim.des.events import EventQueue
from sim.des.sequence import DECODE, PREFILL, REMOVED, WAITING, Sequence
from sim.engine.step_model import StepParams

MAX_NUM_BATCHED_TOKENS = 8192
MAX_NUM_SEQS = 256
_NO_LIMIT = 1 << 60


class InstanceListener(Protocol):
    """Who is told of the engine's progress; the instance has begun its next step by then."""

    def first_token(self, sequence: Sequence, now_ms: float) -> None:
        """The sequence's first output token appeared (once, also after a pre-emption)."""

    def finished(self, sequence: Sequence, now_ms: float) -> None:
        """The last output token appeared; the KV memory is free already."""


class Reading(NamedTuple):
    """What an engine's metrics endpoint shows at one moment (names as in vLLM), and its total of tokens."""

    waiting: int
    running: int
    kv_usage: float
    generation_tokens: int


class Instance(Batch):
    """One engine process. It puts its own step ends into ``events``."""

    __slots__ = (
        "_active",
        "_events",
        "_first_ms",
        "_listener",
        "_run_steps",
        "_slope_ms",
        "_start_ms",
        "_token",
        "busy_ms",
        "max_run_steps",
        "observer",
    )

    def __init__(
        self,
        params: StepParams,
        events: EventQueue,
        listener: InstanceListener,
        *,
        kv_tokens: int | None = None,
        unit_tokens: int = 16,
        block_tokens: int = 512,
        max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
        max_num_seqs: int = MAX_NUM_SEQS,
        max_run_steps: int | None = None,
    ) -> None:
        """``kv_tokens`` (default: the parameter set's) is rounded down to whole units.

        ``max_run_steps`` bounds how many steps are advanced in one piece: 1 is plain stepping. ValueError
        unless every sequence of a full batch can get a token in each step.
        """
        pool = BlockPool(
            (params.kv_tokens if kv_tokens is None else kv_tokens) // unit_tokens, unit_tokens, block_tokens
        )
        super().__init__(
            params, pool, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
        )
        self.max_run_steps = _NO_LIMIT if max_run_steps is None else max_run_steps
        self.observer: Callable[[float, float, float, int, list[Sequence]], None] | None = None
        self.busy_ms = 0.0
        self._events = events
        self._listener = listener
        self._active = False
        self._token = 0  # step ends with an older one are void
        self._start_ms = self._first_ms = self._slope_ms = 0.0
        self._run_steps = 0

    @property
    def active(self) -> bool:
        """Whether a step is in progress."""
        return self._active

    def resident_tokens(self, now_ms: float) -> int:
        """Tokens of decoding sequences with KV, after the steps that have ended by now."""
        done = self._ended_by(now_ms) if self._active else 0
        return self._base_sum + self._decoding * (self.steps + done)

    def reading(self, now_ms: float) -> Reading:
        """What a scrape would see now."""
        pool = self.pool
        used = pool.used_units
        tokens = self.generation_tokens
        if self._active and self._run_steps > 1:
            done = self._ended_by(now_ms)
            used = min(pool.total_units, used + self._growth(self.steps + 1, done))
            tokens += done * self._decoding
        return Reading(self._waiting_count, len(self._running), used / pool.total_units, tokens)

    def submit(self, sequence: Sequence, now_ms: float) -> None:
        """Queue a sequence; it can join the batch at the next step's start.

        ValueError for lengths under one token, or more than the whole KV memory holds.
        """
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 1:
            raise ValueError("A sequence needs at least one prompt token and one output token.")
        if not self.fits(sequence.prompt_tokens, sequence.output_tokens):
            raise ValueError(
                f"{sequence.prompt_tokens} prompt and {sequence.output_tokens} output tokens don't fit into "
                f"a KV memory of {self.capacity_tokens} tokens."
            )
        sequence.queued_ms = now_ms
        self._waiting.append(sequence)
        self._waiting_count += 1
        self.waiting_tokens += sequence.prompt_tokens
        if not self._active:
            self._plan(now_ms)
        elif self._waiting_count == 1:  # else it can't be admitted before the one that is waiting already
            self._end_run_at_step(now_ms)

    def cancel(self, sequence: Sequence, now_ms: float) -> bool:
        """Remove a sequence and free its memory at once; ``False`` when it has ended before.

        The step in progress still takes as long as it was planned to.
        """
        if sequence.state == WAITING:
            while self._waiting[0].state != WAITING:
                self._waiting.popleft()
            was_head = self._waiting[0] is sequence
            self._waiting_count -= 1
            self.waiting_tokens -= sequence.prompt_tokens + sequence.generated_tokens
            sequence.state = REMOVED
            if was_head and self._waiting_count and self._active:
                self._end_run_at_step(now_ms)  # the next in the queue may fit
            return True
        if sequence.state not in (PREFILL, DECODE):
            return False
        self._commit_until(now_ms)
        del self._running[sequence]
        if sequence.state == DECODE:
            self._leave_decoding(sequence, extra=1)  # the step in progress has taken memory for its token
        self._free(sequence)
        if self._partial is sequence:
            self._partial = None
        sequence.state = REMOVED
        return True

    def fail(self, now_ms: float) -> list[Sequence]:
        """The process dies: everything in it is lost and returned, in order of admission, then the queue."""
        if self._active:
            self._commit_until(now_ms)
        lost = [*self._running, *(s for s in self._waiting if s.state == WAITING)]
        for sequence in lost:
            if sequence.state == DECODE:
                sequence.computed_tokens = sequence.base + self.steps
                sequence.generated_tokens = sequence.computed_tokens - sequence.prompt_tokens + 1
            sequence.state = REMOVED
            sequence.held = []
            sequence.units = 0
        self.pool.clear()
        self._token += 1
        self._active = False
        self._reset()
        return lost

    # Time within a run of steps ---------------------------------------------------------------------------

    def _end_of(self, steps: int) -> float:
        """When so many steps of the run have ended."""
        return self._start_ms + steps * self._first_ms + self._slope_ms * (0.5 * steps * (steps - 1))

    def _ended_by(self, now_ms: float) -> int:
        """Steps of the run that have ended by now; the last one ends with its event and not before."""
        last = self._run_steps - 1
        if last == 0:
            return 0
        elapsed_ms = now_ms - self._start_ms
        slope = self._slope_ms
        half = self._first_ms - 0.5 * slope
        if slope > 0.0:
            steps = int((sqrt(half * half + 2.0 * slope * elapsed_ms) - half) / slope)
        else:
            steps = int(elapsed_ms / half)
        steps = 0 if steps < 0 else last if steps > last else steps
        while steps < last and self._end_of(steps + 1) <= now_ms:
            steps += 1
        while steps > 0 and self._end_of(steps) > now_ms:
            steps -= 1
        return steps

    def _schedule(self, steps: int) -> None:
        self._run_steps = steps
        self._token += 1
        self._events.at(self._end_of(steps), self._step_end, self._token)

    def _end_run_at_step(self, now_ms: float) -> None:
        """Let the run end with the step in progress, so that the batch can change there."""
        steps = self._ended_by(now_ms) + 1
        if steps < self._run_steps:
            self._schedule(steps)

    def _commit_until(self, now_ms: float) -> None:
        """Account for the steps that have ended, and leave a run of the one step in progress."""
        if self._run_steps == 1:
            return
        done = self._ended_by(now_ms)
        if done:
            start_ms, first_ms = self._end_of(done), self._first_ms + self._slope_ms * done
            self._tell_observer(done)
            self.pool.take(self._growth(self.steps + 1, done))  # that of the step in progress included
            self.busy_ms += start_ms - self._start_ms
            self._start_ms, self._first_ms = start_ms, first_ms
            self.steps += done
            self.generation_tokens += done * self._decoding
        self._schedule(1)

    def _tell_observer(self, steps: int) -> None:
        if self.observer is not None:
            decoders = [s for s in self._running if s.state == DECODE]
            self.observer(self._start_ms, self._first_ms, self._slope_ms, steps, decoders)

    # Runs -----------------------------------------------------------------------------------------------

    def _plan(self, now_ms: float) -> None:
        """Start the next run of steps, or go idle."""
        preempted = self._plan_running()
        blocked_by_memory = False
        if self._waiting_count and not preempted:
            blocked_by_memory = self._plan_waiting(now_ms)
        decoding = self._decoding
        prefills = self._prefills
        params = self.params
        if not prefills and decoding == 0:
            self._active = False
            return
        self._active = True
        self._start_ms = now_ms
        resident = self._base_sum + decoding * self.steps
        if prefills:
            self._slope_ms = 0.0
            self._first_ms = self._mixed_step_ms(decoding, resident)
            self._schedule(1)
            return
        self._first_ms = params.base_ms + params.decode_ms * decoding + params.resident_ms * resident * 1e-3
        self._slope_ms = params.resident_ms * decoding * 1e-3
        steps = 1 if preempted else min(self._next_finish() - self.steps, self.max_run_steps)
        if steps > 1:
            # A head of the queue that doesn't fit may come to fit when one of its own blocks is evicted.
            units = self.pool.blank if blocked_by_memory else self.pool.free_units
            steps = 1 + self._steps_within(self.steps + 1, steps - 1, units)
        self._schedule(steps)

    def _step_end(self, now_ms: float, token: int) -> None:
        if token != self._token:
            return
        self._tell_observer(self._run_steps)
        run_steps = self._run_steps
        if run_steps > 1:
            self.pool.take(self._growth(self.steps + 1, run_steps - 1))
        self.busy_ms += now_ms - self._start_ms
        self.steps += run_steps
        self.generation_tokens += run_steps * self._decoding
        ended: list[Sequence] = []
        self._end_decodes(ended)
        first: list[Sequence] = []
        if self._prefills:
            self._end_prefills(now_ms, first, ended)
        self._plan(now_ms)
        listener = self._listener
        for sequence in first:
            listener.first_token(sequence, now_ms)
        for sequence in ended:
            listener.finished(sequence, now_ms)
