"""The simulator: engine steps per CPU-second, and how long an hour of a thousand instances would take.

Run: ``tokenfleet bench sim``. The first run is eight instances of set S2 under the conversation workload at
1.6 times the trace's rate (5.4 requests/s). The second one is a short piece of 1,000 instances in three
regions at 0.45 requests/s each, 60% of where first tokens begin to wait here (about 0.75); its hour
is extrapolated from the CPU time of the piece after its warm-up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.des.clients import ClientOptions, OpenArrivals
from sim.des.generated import CONVERSATION, CONVERSATION_SHAPE, generated_stream
from sim.des.metrics import Totals
from sim.des.network import Link, Network, single_region
from sim.des.replicas import ReplicaSpec
from sim.des.signals import SignalOptions
from sim.des.simulation import FleetSpec, PolicySet, Simulation
from sim.policies.balancers import BALANCERS
from sim.workloads.plan import IntentSpec, PlanShape, plan_from_trace
from sim.workloads.traces import load_trace

TRACE = Path("../shared/traces/mooncake_conversation_trace.jsonl.gz")
SPEED_UP = 1.6
RATE_RPS = 3.4 * SPEED_UP
DURATION_MS = 1_800_000.0
ROUNDS = 3
REGIONS = ("a", "b", "c")
LARGE_INSTANCES = 1_000
LARGE_RPS_PER_INSTANCE = 0.45


def conversation(trace: Path | None, duration_ms: float) -> tuple[list[IntentSpec], str]:
    """The workload and where it is from: the trace where there is one, else the generator."""
    shape = PlanShape(classes=(CONVERSATION,), entry_shares={"a": 1.0}, residency_shares={})
    if trace is not None and trace.exists():
        requests = load_trace(trace).requests
        specs = plan_from_trace(requests, rate_rps=RATE_RPS, duration_ms=duration_ms, shape=shape)
        return list(specs), "trace"
    stream = generated_stream(
        rate_rps=RATE_RPS,
        duration_ms=duration_ms,
        seed=0,
        shape=shape,
        generator=CONVERSATION_SHAPE,
        window_ms=600_000.0,
    )
    return list(stream), "generator"


def eight_instances(specs: list[IntentSpec], policy: str) -> dict[str, float]:
    """One run: simulated steps, CPU seconds, steps per CPU-second.

    A policy that saves prefill and queueing needs fewer steps for a request, so compare policies by CPU time
    a request.
    """
    run = Simulation(
        FleetSpec(single_region(), [ReplicaSpec("a", "S2")] * 8),
        PolicySet(policy, BALANCERS[policy].factory({}), needs_prefix=BALANCERS[policy].needs_prefix),
        OpenArrivals(specs),
        until_ms=specs[-1].at_ms + 1.0,
        clients=ClientOptions(),
    )
    begin_s = time.process_time()
    results = run.run()
    cpu_s = time.process_time() - begin_s
    return {
        "requests": len(specs),
        "steps": results.final.steps,
        "events": results.events,
        "cpu_s": cpu_s,
        "steps_per_cpu_s": results.final.steps / cpu_s,
        "us_per_request": cpu_s / len(specs) * 1e6,
    }


def thousand_instances(seconds: float, warmup_s: float = 10.0) -> dict[str, float]:
    """A piece of ``seconds`` after its warm-up, and the hour extrapolated from it (one process)."""
    network = Network(
        REGIONS, {("a", "b"): Link(30.0), ("a", "c"): Link(80.0), ("b", "c"): Link(60.0)}, {"eu": ["b"]}
    )
    shape = PlanShape(
        classes=(CONVERSATION,), entry_shares=dict.fromkeys(REGIONS, 1.0), residency_shares={"eu": 0.1}
    )
    until_ms = (warmup_s + seconds) * 1_000.0

    def specs() -> Iterator[IntentSpec]:
        return generated_stream(
            rate_rps=LARGE_RPS_PER_INSTANCE * LARGE_INSTANCES,
            duration_ms=until_ms,
            seed=0,
            shape=shape,
            generator=CONVERSATION_SHAPE,
            window_ms=10_000.0,
        )

    run = Simulation(
        FleetSpec(
            network,
            [ReplicaSpec(REGIONS[i % 3], "S2") for i in range(LARGE_INSTANCES)],
            signals=SignalOptions(sample_every_ms=1_000.0),
        ),
        PolicySet("lor", BALANCERS["lor"].factory({})),
        OpenArrivals(specs()),
        until_ms=until_ms,
        warmup_ms=warmup_s * 1_000.0,
    )
    cpu_s: list[float] = []
    totals: list[Totals] = []

    def mark(simulation: Simulation) -> None:
        cpu_s.append(time.process_time())
        totals.append(simulation.totals(simulation.events.now_ms))

    for at_ms in (warmup_s * 1_000.0, until_ms):
        run.at(at_ms, mark)
    run.run()
    spent_s, steps = cpu_s[1] - cpu_s[0], totals[1].steps - totals[0].steps
    return {
        "instances": LARGE_INSTANCES,
        "simulated_s": seconds,
        "steps": steps,
        "cpu_s": spent_s,
        "steps_per_cpu_s": steps / spent_s,
        "hour_steps": steps * 3_600.0 / seconds,
        "hour_cpu_s": spent_s * 3_600.0 / seconds,
    }


def run(trace: Path | None = TRACE, large_seconds: float = 20.0) -> dict[str, Any]:
    """All figures; ``steps_per_cpu_s`` is the best of several rounds of the eight instances under LOR."""
    specs, source = conversation(trace, DURATION_MS)
    rounds = {
        policy: max(
            (eight_instances(specs, policy) for _ in range(ROUNDS)), key=lambda made: made["steps_per_cpu_s"]
        )
        for policy in ("rr", "lor", "predicted_ttft")
    }
    figures: dict[str, Any] = {
        "steps_per_cpu_s": rounds["lor"]["steps_per_cpu_s"],
        "workload": source,
        "eight_instances": rounds,
    }
    if large_seconds > 0:
        figures["thousand_instances"] = thousand_instances(large_seconds)
    return figures
