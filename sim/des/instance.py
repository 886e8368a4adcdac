"""A fast simulated engine: the scheduler of :mod:`sim.engine`, many decode-only steps advanced in one piece.

Between two events (a prefill, a finish, a shortage of KV memory, an arrival, a cancel) every step gives one
token to each of B decoding sequences, so step i (from 0) of such a run takes ``d0 + i*g`` with
``d0 = a + b*B + c*KV`` and ``g = c*B`` (KV in thousands of resident tokens), and i steps end after
``i*d0 + g*i*(i-1)/2``. An arrival or a cancel in mid-run cuts the run at the step in progress. Tests hold
this equal to plain stepping (``max_run_steps=1``) and to :class:`sim.engine.scheduler.EngineScheduler`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import sqrt
from typing import NamedTuple, Protocol

from sim.des.block_pool import BlockPool
from sim.des.events import EventQueue
from sim.des.sequence import DECODE, FINISHED, PREFILL, REMOVED, WAITING, Sequence
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


class Instance:
    """One engine process. It puts its own step ends into ``events``."""

    __slots__ = (
        "_active",
        "_admissions",
        "_base_sum",
        "_crossings",
        "_decoding",
        "_events",
        "_finishes",
        "_first_ms",
        "_listener",
        "_partial",
        "_prefills",
        "_run_steps",
        "_running",
        "_slope_ms",
        "_start_ms",
        "_token",
        "_waiting",
        "_waiting_count",
        "busy_ms",
        "capacity_tokens",
        "generation_tokens",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_run_steps",
        "observer",
        "params",
        "pool",
        "preemptions",
        "prefill_tokens",
        "prefix_hit_tokens",
        "prefix_query_tokens",
        "steps",
        "waiting_tokens",
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
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"A batch of {max_num_seqs} sequences needs at least one and at most "
                f"{max_num_batched_tokens} tokens a step (max_num_batched_tokens)."
            )
        self.params = params
        self.pool = BlockPool(
            (params.kv_tokens if kv_tokens is None else kv_tokens) // unit_tokens, unit_tokens, block_tokens
        )
        self.capacity_tokens = self.pool.total_units * unit_tokens
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_run_steps = _NO_LIMIT if max_run_steps is None else max_run_steps
        self.observer: Callable[[float, float, float, int, list[Sequence]], None] | None = None
        self._events = events
        self._listener = listener
        # Totals; they survive a failure, since they count work that was done.
        self.steps = 0
        self.busy_ms = 0.0
        self.generation_tokens = 0
        self.prefill_tokens = 0  # computed, recomputing after pre-emptions included
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0
        self._admissions = 0
        self._token = 0  # step ends with an older one are void
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[Sequence] = deque()  # cancelled ones are skipped when they come to the head
        self._waiting_count = 0
        self.waiting_tokens = 0  # prompt (and recomputed) tokens in the queue
        self._running: dict[Sequence, None] = {}  # in order of admission
        self._decoding = 0
        self._base_sum = 0
        self._crossings = [0] * self.pool.unit_tokens  # decoders that need a new unit at steps of this rest
        self._finishes: list[tuple[int, int, Sequence]] = []  # (after step, admission, decoder)
        self._partial: Sequence | None = None  # admitted, prompt not yet planned to its end: at most one
        self._prefills: list[tuple[Sequence, int]] = []  # with their chunks of the step in progress
        self._active = False
        self._start_ms = self._first_ms = self._slope_ms = 0.0
        self._run_steps = 0

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, pre-empted ones included."""
        return self._waiting_count

    @property
    def active(self) -> bool:
        """Whether a step is in progress."""
        return self._active

    @property
    def decoding(self) -> int:
        """Sequences that get a token in every step."""
        return self._decoding

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

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether such a request can ever run here."""
        return prompt_tokens + output_tokens <= self.capacity_tokens

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
        self._reset()
        return lost

    def generated(self, sequence: Sequence) -> int:
        """Output tokens of a sequence up to the last step that was accounted for."""
        if sequence.state == DECODE:
            return sequence.base + self.steps - sequence.prompt_tokens + 1
        return sequence.generated_tokens

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

    # Memory -----------------------------------------------------------------------------------------------

    def _growth(self, step: int, steps: int) -> int:
        """Units that the decoding sequences need for ``steps`` steps from step number ``step`` on."""
        unit = self.pool.unit_tokens
        cycles, rest = divmod(steps, unit)
        units = cycles * self._decoding
        if rest:
            first = step % unit
            crossings = self._crossings
            stop = first + rest
            units += sum(crossings[first:stop])
            if stop > unit:
                units += sum(crossings[: stop - unit])
        return units

    def _steps_within(self, step: int, steps: int, units: int) -> int:
        """How many of ``steps`` steps from number ``step`` on fit into ``units`` units."""
        unit = self.pool.unit_tokens
        if self._decoding * (steps // unit + 1) <= units:
            return steps
        cycles = min(units // self._decoding, steps // unit)  # whole cycles that fit for sure
        units -= cycles * self._decoding
        count = cycles * unit
        crossings = self._crossings
        while count < steps:
            units -= crossings[(step + count) % unit]
            if units < 0:
                break
            count += 1
        return count

    def _free(self, sequence: Sequence) -> None:
        """Give back all that a sequence holds; ``units`` must be up to date."""
        pool = self.pool
        pool.release(sequence.held, sequence.units - len(sequence.held) * pool.block_units)
        sequence.held = []
        sequence.units = 0

    def _leave_decoding(self, sequence: Sequence, extra: int = 0) -> None:
        """Take a sequence out of the sums of the decoding ones; its own fields are brought up to date.

        ``extra`` tokens are those beyond the computed ones for which memory has been taken.
        """
        base = sequence.base
        unit = self.pool.unit_tokens
        self._decoding -= 1
        self._base_sum -= base
        self._crossings[-base % unit] -= 1
        computed = base + self.steps
        sequence.computed_tokens = computed
        sequence.generated_tokens = computed - sequence.prompt_tokens + 1
        sequence.units = -(-(computed + extra) // unit)

    def _preempt(self) -> Sequence:
        """Send the newest of the batch back to the head of the queue; what it had computed is lost, except
        for what the prefix cache keeps."""
        sequence, _ = self._running.popitem()
        if sequence.state == DECODE:
            self._leave_decoding(sequence)
        else:
            self._partial = None
        self._free(sequence)
        sequence.state = WAITING
        sequence.registered = 0
        sequence.computed_tokens = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(sequence)
        self._waiting_count += 1
        self.waiting_tokens += sequence.prompt_tokens + sequence.generated_tokens
        return sequence

    # Planning ---------------------------------------------------------------------------------------------

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
        self._first_ms = (
            params.base_ms + params.decode_ms * decoding + params.resident_ms * resident * 1e-3
        )
        self._slope_ms = params.resident_ms * decoding * 1e-3
        steps = 1 if preempted else min(self._next_finish() - self.steps, self.max_run_steps)
        if steps > 1:
            # A head of the queue that doesn't fit may come to fit when one of its own blocks is evicted.
            units = self.pool.blank if blocked_by_memory else self.pool.free_units
            steps = 1 + self._steps_within(self.steps + 1, steps - 1, units)
        self._schedule(steps)

    def _mixed_step_ms(self, decoding: int, resident: int) -> float:
        """Duration of a step with prefill. A chunk of one token that recomputes counts as a decode."""
        params = self.params
        tokens = 0
        attention = 0.0
        for sequence, chunk in self._prefills:
            if chunk == 1 and sequence.generated_tokens:
                decoding += 1
                resident += sequence.computed_tokens
            else:
                tokens += chunk
                attention += chunk * (sequence.computed_tokens + chunk * 0.5) * 1e-6
        return (
            params.base_ms
            + params.decode_ms * decoding
            + params.resident_ms * resident * 1e-3
            + params.prefill_ms * tokens
            + params.attention_ms * attention
        )

    def _next_finish(self) -> int:
        """The step count at which the next decoding sequence is done."""
        finishes = self._finishes
        while finishes:
            step, admit_no, sequence = finishes[0]
            if sequence.state == DECODE and sequence.admit_no == admit_no:
                return step
            heappop(finishes)
        raise RuntimeError("A decoding sequence has no planned end.")

    def _plan_running(self) -> bool:
        """Memory and chunks for the batch as it is; returns whether some had to be pre-empted."""
        pool = self.pool
        units = self._crossings[self.steps % pool.unit_tokens] if self._decoding else 0
        partial = self._partial
        chunk = missing = 0
        if partial is not None:
            chunk, missing = self._next_chunk(partial, self._decoding)
        if units + missing > pool.blank and units + missing > pool.free_units:
            self._plan_under_pressure()
            return True
        pool.take(units + missing)
        if partial is not None:
            self._plan_chunk(partial, chunk, missing)
        return False

    def _next_chunk(self, partial: Sequence, planned: int) -> tuple[int, int]:
        """``(tokens, units)`` of the next chunk after ``planned`` tokens of the step are given away."""
        rest = partial.prompt_tokens + partial.generated_tokens - partial.computed_tokens
        chunk = min(rest, self.max_num_batched_tokens - planned)
        return chunk, -(-(partial.computed_tokens + chunk) // self.pool.unit_tokens) - partial.units

    def _plan_chunk(self, sequence: Sequence, chunk: int, units: int) -> None:
        """Note a chunk of prefill whose memory has been taken."""
        sequence.units += units
        full = min((sequence.computed_tokens + chunk) // self.pool.block_tokens, len(sequence.blocks))
        if full > sequence.registered:
            self.pool.register(sequence.blocks[sequence.registered : full], sequence.held)
            sequence.registered = full
        self._prefills.append((sequence, chunk))

    def _plan_under_pressure(self) -> None:
        """The same one by one, oldest first, pre-empting the newest while memory is short."""
        pool = self.pool
        unit = pool.unit_tokens
        order = list(self._running)
        index = 0
        while index < len(order):
            sequence = order[index]
            chunk = 0
            if sequence.state == DECODE:
                missing = 1 if (sequence.base + self.steps) % unit == 0 else 0
            else:
                chunk, missing = self._next_chunk(sequence, index)
            while missing > pool.free_units:
                order.pop()
                if self._preempt() is sequence:
                    return
            pool.take(missing)
            if chunk:
                self._plan_chunk(sequence, chunk, missing)
            index += 1

    def _plan_waiting(self, now_ms: float) -> bool:
        """Admit from the head of the queue while token budget, slots and memory last; nobody overtakes the
        head. Returns whether memory was what ended it."""
        pool = self.pool
        unit, block_tokens, block_units = pool.unit_tokens, pool.block_tokens, pool.block_units
        budget = self.max_num_batched_tokens - self._decoding
        for _, chunk in self._prefills:
            budget -= chunk
        waiting = self._waiting
        while budget > 0 and self._waiting_count and len(self._running) < self.max_num_seqs:
            sequence = waiting[0]
            if sequence.state != WAITING:
                waiting.popleft()
                continue
            total = sequence.prompt_tokens + sequence.generated_tokens
            # At least one token is always computed: its output is what the next token is sampled from.
            hits, idle = pool.match(sequence.blocks, (total - 1) // block_tokens)
            cached = hits * block_tokens
            chunk = min(total - cached, budget)
            units = -(-(cached + chunk) // unit) - hits * block_units
            if idle * block_units + units > pool.free_units:
                return True
            waiting.popleft()
            self._waiting_count -= 1
            self.waiting_tokens -= total
            held = sequence.held = list(sequence.blocks[:hits])
            pool.hold(held)
            pool.take(units)
            self._admissions += 1
            sequence.admit_no = self._admissions
            sequence.state = PREFILL
            sequence.registered = hits
            sequence.computed_tokens = cached
            sequence.units = hits * block_units
            if sequence.scheduled_ms is None:
                sequence.scheduled_ms = now_ms
                sequence.cached_tokens = cached
                self.prefix_query_tokens += sequence.prompt_tokens
                self.prefix_hit_tokens += cached
            self._running[sequence] = None
            self._plan_chunk(sequence, chunk, units)
            budget -= chunk
        return False

    # The end of a run -------------------------------------------------------------------------------------

    def _step_end(self, now_ms: float, token: int) -> None:
        if token != self._token:
            return
        self._tell_observer(self._run_steps)
        run_steps = self._run_steps
        if run_steps > 1:
            self.pool.take(self._growth(self.steps + 1, run_steps - 1))
        self.busy_ms += now_ms - self._start_ms
        self.steps = steps = self.steps + run_steps
        self.generation_tokens += run_steps * self._decoding
        ended: list[Sequence] = []
        finishes = self._finishes
        while finishes and finishes[0][0] <= steps:
            _, admit_no, sequence = heappop(finishes)
            if sequence.state == DECODE and sequence.admit_no == admit_no:
                self._leave_decoding(sequence)
                self._finish(sequence, ended)
        first: list[Sequence] = []
        if self._prefills:
            self._end_prefills(now_ms, first, ended)
        self._plan(now_ms)
        listener = self._listener
        for sequence in first:
            listener.first_token(sequence, now_ms)
        for sequence in ended:
            listener.finished(sequence, now_ms)

    def _end_prefills(self, now_ms: float, first: list[Sequence], ended: list[Sequence]) -> None:
        prefills, self._prefills = self._prefills, []
        self._partial = None
        for sequence, chunk in prefills:
            self.prefill_tokens += chunk
            if sequence.state != PREFILL:
                continue
            sequence.computed_tokens += chunk
            generated = sequence.generated_tokens
            if sequence.computed_tokens < sequence.prompt_tokens + generated:
                self._partial = sequence
                continue
            self.generation_tokens += 1
            sequence.generated_tokens = generated = generated + 1
            if sequence.first_token_ms is None:
                sequence.first_token_ms = now_ms
                first.append(sequence)
            if generated == sequence.output_tokens:
                self._finish(sequence, ended)
                continue
            sequence.state = DECODE
            sequence.base = base = sequence.computed_tokens - self.steps
            self._decoding += 1
            self._base_sum += base
            self._crossings[-base % self.pool.unit_tokens] += 1
            done_at = self.steps + sequence.output_tokens - generated
            heappush(self._finishes, (done_at, sequence.admit_no, sequence))

    def _finish(self, sequence: Sequence, ended: list[Sequence]) -> None:
        del self._running[sequence]
        self._free(sequence)
        sequence.state = FINISHED
        ended.append(sequence)


