"""Oracle 2: the whole fleet as one engine: one infinite cache, one queue with true lengths, no choice.

N engines as one: every step takes an N-th of its time. A server N times as fast is never later with the same
work than N servers. All that decode get a token in every step; the rest of the step's tokens go to prompts,
shortest remaining prefill first and pre-emptive, which is best for the mean (Schrage 1968). Nobody times out,
memory doesn't end. No request can be faster than alone on an idle engine, so the larger of both times counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from sim.engine.step_model import StepParams, frontend_ms
from sim.oracles.requests import cached_tokens, lower_bounds
from sim.workloads.plan import IntentSpec

Floats = NDArray[np.float64]


def pooled_bounds(
    specs: Sequence[IntentSpec],
    params: StepParams,
    engines: int,
    *,
    frontend: bool = True,
    step_tokens: int = 8192,
) -> tuple[Floats, Floats]:
    """``(ttft_ms, tpot_ms)`` of every intent, in the order of ``specs`` (that of arrival)."""
    least_ttft, least_tpot = lower_bounds(specs, params, frontend=frontend, step_tokens=step_tokens)
    pool = _Pool(specs, params, engines, frontend, step_tokens)
    ttft, tpot = pool.run()
    return np.maximum(ttft, least_ttft), np.maximum(tpot, least_tpot)


class _Pool:
    """The one engine."""

    def __init__(
        self,
        specs: Sequence[IntentSpec],
        params: StepParams,
        engines: int,
        frontend: bool,
        step_tokens: int,
    ) -> None:
        self._specs = specs
        self._params = params
        self._engines = engines
        self._step_tokens = step_tokens
        self._context = cached_tokens(specs).tolist()  # tokens with KV, by intent
        ready = [spec.at_ms + (frontend_ms(spec.input_tokens) if frontend else 0.0) for spec in specs]
        self._order = sorted(range(len(specs)), key=lambda i: ready[i])
        self._ready = ready
        self._next = 0
        self._now_ms = 0.0
        self._queue: list[tuple[int, int]] = []  # (uncached tokens left, intent)
        self._steps = 0
        self._decoding = 0
        self._resident = 0.0  # tokens of all that decode
        self._ends: list[tuple[int, int]] = []  # (step count, intent)
        self._first_ms = np.full(len(specs), np.nan)
        self._last_ms = np.full(len(specs), np.nan)

    def run(self) -> tuple[Floats, Floats]:
        """Play it to the end; TTFT and TPOT in ms."""
        while self._next < len(self._order) or self._queue or self._decoding:
            self._arrive()
            if self._queue:
                self._mixed_step()
            elif self._decoding:
                self._decode_run()
            else:
                self._now_ms = self._ready[self._order[self._next]]
        begin = np.array([spec.at_ms for spec in self._specs])
        outputs = np.array([spec.output_tokens for spec in self._specs], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(outputs > 1, (self._last_ms - self._first_ms) / (outputs - 1.0), np.nan)
        return self._first_ms - begin, tpot

    def _arrive(self) -> None:
        while self._next < len(self._order) and self._ready[self._order[self._next]] <= self._now_ms:
            intent = self._order[self._next]
            heappush(self._queue, (self._specs[intent].input_tokens - self._context[intent], intent))
            self._next += 1

    def _mixed_step(self) -> None:
        params = self._params
        budget = max(1, self._step_tokens - self._decoding)
        tokens, attention = 0, 0.0
        firsts: list[int] = []
        while self._queue and budget > 0:
            left, intent = heappop(self._queue)
            chunk = min(left, budget)
            attention += chunk * (self._context[intent] + 0.5 * chunk) * 1e-6
            self._context[intent] += chunk
            tokens += chunk
            budget -= chunk
            if chunk == left:
                firsts.append(intent)
            else:
                heappush(self._queue, (left - chunk, intent))
        step_ms = params.base_ms + params.decode_ms * self._decoding
        step_ms += params.resident_ms * self._resident * 1e-3 + params.prefill_ms * tokens
        step_ms += params.attention_ms * attention
        self._advance(1, step_ms / self._engines)
        for intent in firsts:
            spec = self._specs[intent]
            self._first_ms[intent] = self._last_ms[intent] = self._now_ms
            if spec.output_tokens > 1:
                self._decoding += 1
                self._resident += spec.input_tokens
                heappush(self._ends, (self._steps + spec.output_tokens - 1, intent))

    def _decode_run(self) -> None:
        """Many steps in one piece, until one ends or the next prompt comes."""
        params = self._params
        slope = params.resident_ms * self._decoding * 1e-3 / self._engines
        first = (
            params.base_ms + params.decode_ms * self._decoding + params.resident_ms * self._resident * 1e-3
        ) / self._engines
        steps = self._ends[0][0] - self._steps
        if self._next < len(self._order):
            span_ms = self._ready[self._order[self._next]] - self._now_ms
            half = first - 0.5 * slope
            until = (sqrt(half * half + 2.0 * slope * span_ms) - half) / slope if slope > 0 else inf
            steps = max(1, min(steps, ceil(until)))
        self._advance(steps, steps * first + slope * 0.5 * steps * (steps - 1))

    def _advance(self, steps: int, span_ms: float) -> None:
        self._now_ms += span_ms
        self._steps += steps
        self._resident += steps * self._decoding
        while self._ends and self._ends[0][0] <= self._steps:
            _, intent = heappop(self._ends)
            spec = self._specs[intent]
            self._last_ms[intent] = self._now_ms
            self._decoding -= 1
            self._resident -= spec.input_tokens + spec.output_tokens - 1
