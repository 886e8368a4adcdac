"""Long generated workloads as a stream, made window by window: an hour of a large fleet fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim.workloads.classes import ClassProfile
from sim.workloads.generator import GeneratorShape
from sim.workloads.plan import IntentSpec, PlanShape, plan_from_generator

CONVERSATION = ClassProfile("conversation", 1.0, 5_000.0, 100.0, 60_000.0, 300_000.0)
"""Long prompts with the lengths of the Mooncake conversation trace; the service level is ours."""

CONVERSATION_SHAPE = GeneratorShape(mean_turns={"conversation": 3.0}, modulation=0.2)

_BLOCKS_OF_A_WINDOW = 1 << 40


def generated_stream(
    *,
    rate_rps: float,
    duration_ms: float,
    seed: int,
    shape: PlanShape,
    generator: GeneratorShape | None = None,
    window_ms: float = 60_000.0,
) -> Iterator[IntentSpec]:
    """Intents of the built-in generator in order of arrival, a window at a time.

    Sessions end with their window, and prefix blocks are shared within one only, apart from the first block,
    which all prompts have.
    """
    start_ms = 0.0
    window = 0
    while start_ms < duration_ms:
        length_ms = min(window_ms, duration_ms - start_ms)
        offset = window * _BLOCKS_OF_A_WINDOW
        for spec in plan_from_generator(
            duration_ms=length_ms,
            rate_rps=rate_rps,
            seed=seed * 100_003 + window,
            shape=shape,
            generator=generator,
            run_id=f"seed{seed}-{window}",
        ):
            blocks = spec.prefix_blocks
            yield replace(
                spec,
                at_ms=spec.at_ms + start_ms,
                prefix_blocks=blocks[:1] + tuple(block + offset for block in blocks[1:]),
            )
        start_ms += length_ms
        window += 1
