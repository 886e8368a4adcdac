"""The batch, the queue and the memory of a fast simulated engine: who is in, and what the next step holds.

The rules are those of :class:`sim.engine.scheduler.EngineScheduler`: decodes first, then the one unfinished
prefill, then the queue first come first served; the newest is pre-empted where memory is short. Time is the
business of :class:`sim.des.instance.Instance`; here there are only steps, which are counted.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from sim.des.block_pool import BlockPool
from sim.des.sequence import DECODE, FINISHED, PREFILL, WAITING, Sequence
from sim.engine.step_model import StepParams


class Batch:
    """State in sums over the decoding sequences, so that many steps are advanced at the cost of one."""

    __slots__ = (
        "_admissions",
        "_base_sum",
        "_crossings",
        "_decoding",
        "_finishes",
        "_partial",
        "_prefills",
        "_running",
        "_waiting",
        "_waiting_count",
        "capacity_tokens",
        "generation_tokens",
        "max_num_batched_tokens",
        "max_num_seqs",
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
        pool: BlockPool,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
    ) -> None:
        """ValueError unless every sequence of a full batch can get a token in each step."""
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"A batch of {max_num_seqs} sequences needs at least one and at most "
                f"{max_num_batched_tokens} tokens a step (max_num_batched_tokens)."
            )
        self.params = params
        self.pool = pool
        self.capacity_tokens = pool.total_units * pool.unit_tokens
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        # Totals; they survive a failure, since they count work that was done.
        self.steps = 0
        self.generation_tokens = 0
        self.prefill_tokens = 0  # computed, recomputing after pre-emptions included
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0
        self._admissions = 0
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

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, pre-empted ones included."""
        return self._waiting_count

    @property
    def decoding(self) -> int:
        """Sequences that get a token in every step."""
        return self._decoding

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether such a request can ever run here."""
        return prompt_tokens + output_tokens <= self.capacity_tokens

    def generated(self, sequence: Sequence) -> int:
        """Output tokens of a sequence up to the last step that was accounted for."""
        if sequence.state == DECODE:
            return sequence.base + self.steps - sequence.prompt_tokens + 1
        return sequence.generated_tokens

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

    # Ends of steps ----------------------------------------------------------------------------------------

    def _end_decodes(self, ended: list[Sequence]) -> None:
        """Let those go that have got their last token by the step that has just been counted."""
        steps = self.steps
        finishes = self._finishes
        while finishes and finishes[0][0] <= steps:
            _, admit_no, sequence = heappop(finishes)
            if sequence.state == DECODE and sequence.admit_no == admit_no:
                self._leave_decoding(sequence)
                self._finish(sequence, ended)

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
