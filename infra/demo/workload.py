"""What the demo plays: a trace by path, or the built-in generator, as intents for the entry regions."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StackError
from infra.layout import Layout
from sim.workloads.plan import IntentSpec, PlanShape, plan_from_generator, plan_from_trace
from sim.workloads.traces import TraceError, load_trace

DEFAULT_DURATION_S = 90.0
DEFAULT_RATE_RPS = 6.0
RESIDENCY_SHARES = {"eu": 0.1}
"""A tenth of the requests may be served in the residency class ``eu`` only (synthesised)."""


@dataclass(frozen=True)
class Workload:
    """The intents of a run and what to call them."""

    plan: tuple[IntentSpec, ...]
    name: str
    run_id: str


def load_workload(
    layout: Layout, *, trace: Path | None, duration_s: float, rate_rps: float | None, seed: int
) -> Workload:
    """Read or make the workload; raises StackError with one sentence where it can't be used.

    A trace keeps its own timing unless a rate is given; the generator plays ``DEFAULT_RATE_RPS``.
    """
    names = list(layout.routers.values())
    shares = {name: 1.0 / (index + 1) for index, name in enumerate(names)}
    shape = PlanShape(entry_shares=shares, residency_shares=RESIDENCY_SHARES)
    run_id = f"run-{secrets.token_hex(3)}"
    try:
        if trace is None:
            rate = rate_rps or DEFAULT_RATE_RPS
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
