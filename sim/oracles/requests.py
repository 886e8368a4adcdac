"""Oracle 1: every request alone on an idle engine, with everything cached that anyone sent before.

Infinite cache, zero queue: the front end, then the uncached prefill in steps of its own. Output tokens then
take a step each, alone in the batch. The last token of a prompt is always computed, as in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine.step_model import StepParams, frontend_ms
from sim.workloads.plan import IntentSpec

Floats = NDArray[np.float64]
BLOCK_TOKENS = 512


def cached_tokens(specs: Sequence[IntentSpec]) -> NDArray[np.int64]:
    """For each intent, prompt tokens whose blocks an earlier intent had in its prompt."""
    seen: set[int] = set()
    cached = np.zeros(len(specs), dtype=np.int64)
    for number, spec in enumerate(specs):
        limit = (spec.input_tokens - 1) // BLOCK_TOKENS
        hits = 0
        for block in spec.prefix_blocks[:limit]:
            if block not in seen:
                break
            hits += 1
        cached[number] = hits * BLOCK_TOKENS
        seen.update(spec.prefix_blocks[: spec.input_tokens // BLOCK_TOKENS])
    return cached


def lower_bounds(
    specs: Sequence[IntentSpec],
    params: StepParams,
    *,
    frontend: bool = True,
    step_tokens: int = 8192,
    rtt_ms: float = 0.0,
) -> tuple[Floats, Floats]:
    """``(ttft_ms, tpot_ms)`` of every intent; the second is NaN for answers of one token."""
    prompts = np.array([spec.input_tokens for spec in specs], dtype=float)
    outputs = np.array([spec.output_tokens for spec in specs], dtype=float)
    cached = cached_tokens(specs).astype(float)
    uncached = prompts - cached
    steps = np.ceil(uncached / step_tokens)
    attention = uncached * (cached + 0.5 * uncached) * 1e-6
    ttft = rtt_ms + steps * params.base_ms + params.prefill_ms * uncached + params.attention_ms * attention
    if frontend:
        ttft += np.array([frontend_ms(spec.input_tokens) for spec in specs])
    resident = (prompts + 0.5 * outputs) * 1e-3
    tpot = params.base_ms + params.decode_ms + params.resident_ms * resident
    return ttft, np.where(outputs > 1, tpot, np.nan)
