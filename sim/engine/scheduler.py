"""Continuous batching with chunked prefill, as vLLM's scheduler does it.

Each step hands every running sequence the tokens that it still has to compute, oldest first (so decodes, one
token each, come before the prefill of whoever joined last), then admits waiting ones first come first served
while token budget, sequence slots and KV blocks last. A prompt longer than the budget is computed in chunks
over several steps. When a running sequence needs a block and none is free, the newest running sequence is
pre-empted: its blocks go, it returns to the head of the queue and later recomputes prompt and output (less
what the prefix cache still holds). A step that pre-empted admits nobody.

A step has two halves, so that what happens *during* it (arrivals, cancels) is seen at the right time:
:meth:`EngineScheduler.start_step` plans it and says how long it takes, :meth:`EngineScheduler.finish_step`
lets its tokens appear.
"""

from collections import OrderedDict

from sim.engine.kv_cache import KvCache
from sim.engine.sequence import EngineCounters, EngineRequest, FinishedRequest, SequenceState, StepResult
from sim.engine.step_model import StepParams, attention_ktok2, step_ms


class EngineScheduler:
    """One engine: queue, running batch, KV cache and counters. Not safe for use from several threads."""

    def __init__(
        self,
        params: StepParams,
        *,
        kv_tokens: int | None = None,
        block_tokens: int = 16,
        max_num_batched_tokens: int = 8192,
        max_num_seqs: int = 256,
    ) -> None:
        """``kv_tokens`` (default: the parameter set's) is rounded down to whole blocks."""
        if max_num_batched_tokens < 1 or max_num_seqs < 1:
            raise ValueError("An engine needs room for at least one token and one sequence a step.")
        capacity_tokens = params.kv_tokens if kv_tokens is None else kv_tokens
        self.params = params
        self.kv = KvCache(capacity_tokens // block_tokens, block_tokens)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.counters = EngineCounters()
        self._sequences: dict[str, SequenceState] = {}
        self._running: list[SequenceState] = []
        self._waiting: OrderedDict[str, SequenceState] = OrderedDict()
        self._plan: list[tuple[SequenceState, int]] | None = None
        self._plan_ms = 0.0

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, pre-empted ones included."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Referenced share of the KV cache, 0 to 1."""
        return self.kv.usage

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence can hold at most: the whole cache."""
        return self.kv.total_blocks * self.kv.block_tokens

    @property
    def stepping(self) -> bool:
        """Whether a step has been started and not finished."""
        return self._plan is not None

    def has(self, request_id: str) -> bool:
        """Whether this request waits or runs here."""
        return request_id in self._sequences

    def submit(self, request: EngineRequest, now_ms: float, arrival_ms: float | None = None) -> None:
        """Queue a request. ``arrival_ms`` is when the front end got it (default: now).

        ``ValueError`` for an id in use, lengths under one token, or more tokens than the whole cache holds.
        """
        if request.request_id in self._sequences:
            raise ValueError(f"Request id {request.request_id!r} is already in this engine.")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("A request needs at least one prompt token and one output token.")
        if request.prompt_tokens + request.output_tokens > self.capacity_tokens:
            raise ValueError(
                f"{request.prompt_tokens} prompt and {request.output_tokens} output tokens don't fit into a "
                f"KV cache of {self.capacity_tokens} tokens."
            )
        sequence = SequenceState(request, now_ms, now_ms if arrival_ms is None else arrival_ms)
        self._sequences[request.request_id] = sequence
        self._waiting[request.request_id] = sequence
        self.counters.submitted += 1

    def cancel(self, request_id: str) -> bool:
        """Remove a request and free its KV at once, in mid-step too; ``False`` if it isn't here."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if self._waiting.pop(request_id, None) is None:
            self._running.remove(sequence)
        self._drop(sequence)
        self.counters.cancelled += 1
        return True

    def step(self, now_ms: float) -> StepResult | None:
        """A whole step that starts at ``now_ms``; ``None`` when there is nothing to do."""
        duration_ms = self.start_step(now_ms)
        return None if duration_ms is None else self.finish_step(now_ms + duration_ms)

    def start_step(self, now_ms: float) -> float | None:
        """Plan the next step and return its duration in ms, or ``None`` when there is nothing to do."""
        if self._plan is not None:
            raise RuntimeError("The last step of this engine has not been finished yet.")
        plan: list[tuple[SequenceState, int]] = []
        preemptions_before = self.counters.preemptions
        budget = self._plan_running(plan)
        if self.counters.preemptions == preemptions_before:
            self._plan_waiting(plan, budget, now_ms)
        if not plan:
            return None
        self._plan = plan
        self._plan_ms = self._duration_ms(plan)
        return self._plan_ms

    def finish_step(self, now_ms: float) -> StepResult:
        """End the step that was started: its tokens appear, and what is complete leaves and frees its KV."""
        if self._plan is None:
            raise RuntimeError("There is no started step to finish.")
        plan, self._plan = self._plan, None
        result = StepResult(self._plan_ms)
        any_finished = False
        for sequence, new_tokens in plan:
            if not sequence.alive:
                continue
            sequence.computed_tokens += new_tokens
            if sequence.computed_tokens == sequence.total_tokens:
                self._emit_token(sequence, now_ms, result)
                any_finished |= not sequence.alive
        if any_finished:
            self._running = [s for s in self._running if s.alive]
        self.counters.generation_tokens += len(result.tokens)
        result.iteration_tokens += len(result.tokens)
        return result

    def _plan_running(self, plan: list[tuple[SequenceState, int]]) -> int:
        """Plan the running sequences, pre-empting from the end where KV is short; returns the budget left."""
        budget = self.max_num_batched_tokens
        kv = self.kv
        block_tokens = kv.block_tokens
        running = self._running
        index = 0
        while index < len(running) and budget > 0:
            sequence = running[index]
            computed = sequence.computed_tokens
            new_tokens = min(sequence.total_tokens - computed, budget)
            missing = -(-(computed + new_tokens) // block_tokens) - len(sequence.blocks)
            if missing > 0 and not self._extend_or_preempt(sequence, missing):
                break  # it was the newest itself: everyone before it has been planned
            self._register_full_blocks(sequence, computed + new_tokens)
            plan.append((sequence, new_tokens))
            budget -= new_tokens
            index += 1
        return budget

    def _extend_or_preempt(self, sequence: SequenceState, missing: int) -> bool:
        """Give ``sequence`` more blocks, pre-empting newer ones; ``False`` when it had to go itself."""
        while not self.kv.extend(sequence.blocks, missing):
            victim = self._running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _plan_waiting(self, plan: list[tuple[SequenceState, int]], budget: int, now_ms: float) -> None:
        """Admit from the head of the queue while budget, slots and KV last; nobody overtakes the head."""
        kv = self.kv
        while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            request = sequence.request
            total = sequence.total_tokens
            # At least one token is always computed: its output is what the next token is sampled from.
            hits = kv.hit_blocks(request.block_hashes, (total - 1) // kv.block_tokens)
            cached = hits * kv.block_tokens
            new_tokens = min(total - cached, budget)
            blocks = kv.admit(request.block_hashes, hits, kv.blocks_for(cached + new_tokens) - hits)
            if blocks is None:
                break
            del self._waiting[request.request_id]
            self._running.append(sequence)
            sequence.blocks = blocks
            sequence.registered_blocks = hits
            sequence.computed_tokens = cached
            if not sequence.admitted:
                sequence.admitted = True
                sequence.scheduled_ms = now_ms
                sequence.cached_tokens = cached
                self.counters.prefix_query_tokens += request.prompt_tokens
                self.counters.prefix_hit_tokens += cached
            self._register_full_blocks(sequence, cached + new_tokens)
            plan.append((sequence, new_tokens))
            budget -= new_tokens

    def _register_full_blocks(self, sequence: SequenceState, tokens: int) -> None:
        """Make full blocks findable. As in vLLM at planning, so equal prompts share within one step."""
        hashes = sequence.request.block_hashes
        full = min(tokens // self.kv.block_tokens, len(hashes))
        if full > sequence.registered_blocks:
            self.kv.register(sequence.blocks, hashes, sequence.registered_blocks, full)
            sequence.registered_blocks = full

    def _preempt(self, sequence: SequenceState) -> None:
        """Back to the head of the queue; everything computed is lost, except what the prefix cache keeps."""
        self.kv.release(sequence.blocks)
        sequence.blocks = []
        sequence.registered_blocks = 0
        sequence.computed_tokens = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        request_id = sequence.request.request_id
        self._waiting[request_id] = sequence
        self._waiting.move_to_end(request_id, last=False)

    def _duration_ms(self, plan: list[tuple[SequenceState, int]]) -> float:
        decoding = resident_tokens = prefill_tokens = 0
        attention = 0.0
        for sequence, new_tokens in plan:
            if new_tokens == 1 and sequence.generated_tokens:
                decoding += 1
                resident_tokens += sequence.computed_tokens
            else:
                prefill_tokens += new_tokens
                attention += attention_ktok2(new_tokens, sequence.computed_tokens)
        return step_ms(
            self.params,
            decoding=decoding,
            resident_tokens=resident_tokens,
            prefill_tokens=prefill_tokens,
            attention_work_ktok2=attention,
        )

    def _emit_token(self, sequence: SequenceState, now_ms: float, result: StepResult) -> None:
        request = sequence.request
        result.tokens.append(request.request_id)
        if sequence.generated_tokens == 0:
            sequence.first_token_ms = now_ms
            result.ttft_ms.append(now_ms - sequence.arrival_ms)
            result.iteration_tokens += request.prompt_tokens - sequence.cached_tokens
            self.counters.prompt_tokens += request.prompt_tokens
            self.counters.cached_prompt_tokens += sequence.cached_tokens
        else:
            gap_ms = now_ms - sequence.last_token_ms
            result.inter_token_ms[gap_ms] = result.inter_token_ms.get(gap_ms, 0) + 1
        sequence.last_token_ms = now_ms
        sequence.generated_tokens += 1
        if sequence.generated_tokens == request.output_tokens:
            result.finished.append(self._finish(sequence, now_ms))

    def _finish(self, sequence: SequenceState, now_ms: float) -> FinishedRequest:
        request = sequence.request
        del self._sequences[request.request_id]
        self._drop(sequence)
        if request.ends_with == "stop":
            self.counters.finished_stop += 1
        else:
            self.counters.finished_length += 1
        return FinishedRequest(
            request_id=request.request_id,
            reason=request.ends_with,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            output_tokens=request.output_tokens,
            preemptions=sequence.preemptions,
            arrival_ms=sequence.arrival_ms,
            queued_ms=sequence.queued_ms,
            scheduled_ms=sequence.scheduled_ms,
            first_token_ms=sequence.first_token_ms,
            finished_ms=now_ms,
        )

    def _drop(self, sequence: SequenceState) -> None:
        sequence.alive = False
        self.kv.release(sequence.blocks)
        sequence.blocks = []
