"""Small runs for tests: a busy little fleet, impatient clients, and policies that watch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sim.des.clients import ClientOptions, OpenArrivals
from sim.des.network import Network, single_region
from sim.des.policy import BALANCERS, Balancer
from sim.des.replicas import ReplicaSpec
from sim.des.signals import SignalOptions
from sim.des.simulation import FleetSpec, PolicySet, Simulation
from sim.workloads.plan import IntentSpec

IMPATIENT = ClientOptions(max_retries=2, backoff_ms=200.0, cancel_share=0.2, cancel_within_ms=6_000.0)


def intents(
    seed: int,
    count: int,
    *,
    mean_gap_ms: float = 120.0,
    regions: Sequence[str] = ("a",),
    residencies: Sequence[str | None] = (None,),
    timeout_ms: float = 4_000.0,
) -> list[IntentSpec]:
    """Requests of some hundred to some thousand tokens in families that share prefixes."""
    rng = random.Random(seed)
    made = []
    at_ms = 0.0
    for number in range(count):
        at_ms += rng.expovariate(1.0 / mean_gap_ms)
        tokens = rng.randint(20, 6_000)
        family = rng.randint(0, 5)
        chain = [family * 100 + i for i in range(rng.randint(0, 8))]
        chain += [10_000 + number * 20 + i for i in range(12)]
        made.append(
            IntentSpec(
                intent_id=f"i{number}",
                at_ms=at_ms,
                service_class=rng.choice(["interactive", "batch"]),
                tenant=rng.choice(["t0", "t1"]),
                entry_region=rng.choice(list(regions)),
                residency=rng.choice(list(residencies)),
                input_tokens=tokens,
                output_tokens=rng.randint(1, 300),
                prefix_blocks=tuple(chain[: tokens // 512]),
                deadline_ms=20_000.0,
                ttft_slo_ms=1_500.0,
                tpot_slo_ms=60.0,
                client_timeout_ms=timeout_ms,
            )
        )
    return made


def simulation(
    specs: Sequence[IntentSpec],
    *,
    policies: PolicySet | str = "lor",
    network: Network | None = None,
    replicas: Sequence[ReplicaSpec] | None = None,
    signals: SignalOptions | None = None,
    routers: int = 1,
    clients: ClientOptions = IMPATIENT,
    warmup_ms: float = 100.0,
    seed: int = 0,
    max_run_steps: int | None = None,
) -> Simulation:
    """Three small engines whose memory runs out now and then."""
    if isinstance(policies, str):
        policies = PolicySet(policies, balancer(policies))
    fleet = FleetSpec(
        network or single_region(),
        replicas or [ReplicaSpec("a", "S2", kv_tokens=16_000)] * 3,
        routers_per_region=routers,
        signals=signals or SignalOptions(),
    )
    return Simulation(
        fleet,
        policies,
        OpenArrivals(specs),
        until_ms=specs[-1].at_ms + 1.0,
        warmup_ms=warmup_ms,
        clients=clients,
        seed=seed,
        max_run_steps=max_run_steps,
    )


def balancer(name: str) -> Callable[[int], Balancer]:
    """A factory of a plain policy."""
    return lambda router: BALANCERS[name]()
