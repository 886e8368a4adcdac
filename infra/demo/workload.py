"""What the demo plays: a trace by path, or the built-in generator, as intents for the entry regions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infra.errors import StackError
from infra.layout import EngineKind, Layout
from infra.llamacpp.tiny_model import CONTEXT_TOKENS
from sim.workloads.plan import IntentSpec, PlanShape, plan_from_generator, plan_from_trace
from sim.workloads.traces import BLOCK_TOKENS, TraceError, load_trace

DEFAULT_DURATION_S = 90.0
DEFAULT_RATE_RPS: Mapping[EngineKind, float] = {"emulated": 6.0, "llama.cpp": 4.0}
RESIDENCY_SHARES = {"eu": 0.1}
"""A tenth of the requests may be served in the residency class ``eu`` only (synthesised)."""


@dataclass(frozen=True)
class LengthLimits:
    """What a request may ask at most, in tokens."""

    prompt: int
    answer: int

    def apply(self, plan: Sequence[IntentSpec]) -> tuple[IntentSpec, ...]:
        """The plan with longer prompts and answers cut; arrivals and shared prefixes stay."""
        return tuple(
            replace(
                spec,
                input_tokens=min(spec.input_tokens, self.prompt),
                output_tokens=min(spec.output_tokens, self.answer),
                prefix_blocks=spec.prefix_blocks[: self.prompt // BLOCK_TOKENS],
            )
            for spec in plan
        )

    def __str__(self) -> str:
        return f"prompts cut to {self.prompt:,} tokens and answers to {self.answer:,}"


LIMITS: Mapping[EngineKind, LengthLimits] = {
    # Both fit its context together. The answers of public traces are longer than a CPU should have to write.
    "llama.cpp": LengthLimits(prompt=CONTEXT_TOKENS // 2, answer=256),
}
"""By kind of engine; the emulated ones take a workload as it is."""


@dataclass(frozen=True)
class Workload:
    """The intents of a run and what to call them. ``limits`` were applied."""

    plan: tuple[IntentSpec, ...]
    name: str
    run_id: str
    limits: LengthLimits | None = None


def load_workload(
    layout: Layout, *, trace: Path | None, duration_s: float, rate_rps: float | None, seed: int
) -> Workload:
    """Read or make the workload; raises StackError with one sentence where it can't be used.

    A trace keeps its own timing unless a rate is given; the generator plays ``DEFAULT_RATE_RPS``. Lengths
    are cut to what the layout's engines can take (``LIMITS``).
    """
    workload = _load(layout, trace, duration_s, rate_rps, seed)
    limits = LIMITS.get(layout.engine)
    return workload if limits is None else replace(workload, plan=limits.apply(workload.plan), limits=limits)


def _load(
    layout: Layout, trace: Path | None, duration_s: float, rate_rps: float | None, seed: int
) -> Workload:
    names = list(layout.routers.values())
    shares = {name: 1.0 / (index + 1) for index, name in enumerate(names)}
    shape = PlanShape(entry_shares=shares, residency_shares=RESIDENCY_SHARES)
    run_id = f"run-{secrets.token_hex(3)}"
    try:
        if trace is None:
            rate = rate_rps or DEFAULT_RATE_RPS[layout.engine]
            plan = plan_from_generator(
                duration_ms=duration_s * 1000, rate_rps=rate, seed=seed, shape=shape, run_id=run_id
            )
            return Workload(plan, f"built-in generator at {rate:g} requests/s", run_id)
        requests = load_trace(trace, seed=seed).requests
        plan = plan_from_trace(
            requests, duration_ms=duration_s * 1000, rate_rps=rate_rps, seed=seed, shape=shape, run_id=run_id
        )
        rate_text = f"at {rate_rps:g} requests/s" if rate_rps else "in its own time"
        return Workload(plan, f"{trace.name} ({len(requests):,} rows) {rate_text}", run_id)
    except (TraceError, ValueError) as error:
        raise StackError(str(error)) from error
