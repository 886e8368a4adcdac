"""One cell of an experiment: one arm under one load with one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.des.clients import ClientOptions
from sim.des.metrics import Results
from sim.des.network import Link, Network
from sim.des.replicas import ReplicaSpec
from sim.des.signals import SignalOptions
from sim.des.simulation import FleetSpec, PolicySet, Simulation
from sim.experiments.spec import Arm, Choice, Clients, Experiment, Load, Operation
from sim.experiments.workload import Places, arrivals_of, intents
from sim.policies.admissions import ADMISSIONS
from sim.policies.balancers import BALANCERS
from sim.policies.regions import REGIONS
from sim.workloads.plan import IntentSpec

ALL_CLASSES = ""
"""The class name of a row over all classes."""

REQUEST_COLUMNS = (
    "offered_ms",
    "ended_ms",
    "ttft_ms",
    "tpot_ms",
    "service_class",
    "cause",
    "attempts",
    "input_tokens",
    "output_tokens",
    "wasted_tokens",
    "cached_tokens",
    "good",
)


@dataclass(frozen=True)
class CellResult:
    """The figures of a cell: one row for all classes and one for each; and its requests, if wanted."""

    arm: str
    load: str
    seed: int
    rows: list[dict[str, Any]]
    classes: tuple[str, ...]
    digest: str
    requests: dict[str, NDArray[Any]] = field(default_factory=dict)


def fleet_of(experiment: Experiment, load: Load) -> FleetSpec:
    """The fleet as the simulator takes it."""
    fleet = experiment.fleet
    links = {
        (link.between[0], link.between[1]): Link(
            link.rtt_ms, link.bandwidth_mbps or inf, link.egress_price_per_gb
        )
        for link in fleet.links
    }
    replicas = [
        ReplicaSpec(
            group.region,
            group.engine,
            group.version,
            max_num_seqs=group.max_num_seqs,
            max_num_batched_tokens=group.max_num_batched_tokens,
        )
        for group in fleet.replicas
        for _ in range(group.count)
    ]
    return FleetSpec(
        Network(fleet.regions, links, fleet.residency),
        replicas,
        load.routers_per_region or fleet.routers_per_region,
        SignalOptions(**(load.signals or fleet.signals).model_dump()),
        fleet.frontend,
    )


def policies_of(arm: Arm, routers: int) -> PolicySet:
    """The arm's policies; those with limits are told how many routers share the fleet."""
    balancer, region = BALANCERS[arm.balancer.policy], REGIONS[arm.region.policy]
    admission = ADMISSIONS[arm.admission.policy]
    limits = dict(arm.admission.knobs)
    if any(knob.name == "routers" for knob in admission.knobs):
        limits.setdefault("routers", routers)
    return PolicySet(
        arm.name,
        balancer.factory(arm.balancer.knobs),
        admission.factory(limits),
        region.factory(arm.region.knobs),
        needs_prefix=balancer.needs_prefix or region.needs_prefix,
    )


def client_options(clients: Clients) -> ClientOptions:
    """The patience of clients."""
    return ClientOptions(
        max_retries=clients.max_retries,
        backoff_ms=clients.backoff_ms,
        backoff_cap_ms=clients.backoff_cap_ms,
        cancel_share=clients.cancel_share,
    )


def simulate(
    experiment: Experiment,
    arm: Arm,
    load: Load,
    seed: int,
    specs: tuple[IntentSpec, ...],
) -> Results:
    """Play the intents under the arm. The window is the same in every arm."""
    fleet = fleet_of(experiment, load)
    last_ms = specs[-1].at_ms + 1.0
    duration_s = experiment.workload.duration_s
    closed = (load.clients or experiment.clients).loop != "open"
    until_ms = duration_s * 1_000.0 if duration_s is not None and closed else last_ms
    run = Simulation(
        fleet,
        policies_of(arm, fleet.routers_per_region * len(fleet.network.regions)),
        arrivals_of(experiment, load, seed, specs),
        until_ms=until_ms,
        warmup_ms=experiment.warmup_share * until_ms,
        clients=client_options(load.clients or experiment.clients),
        seed=seed,
    )
    for operation in load.operations:
        run.at(operation.at_s * 1_000.0, _operation(operation))
    return run.run()


def _operation(operation: Operation) -> Callable[[Simulation], None]:
    def act(run: Simulation) -> None:
        if operation.do == "roll_out" and operation.version is not None:
            run.roll_out(operation.replicas, operation.version, load_ms=operation.load_s * 1_000.0)
            return
        for number in operation.replicas:
            if operation.do == "fail":
                run.fail(number)
            elif operation.do == "drain":
                run.drain(number)
            else:
                run.start(number, operation.load_s * 1_000.0)

    return act


def run_cell(
    experiment: Experiment, arm: Arm, load: Load, seed: int, places: Places, keep_requests: bool
) -> CellResult:
    """Simulate, and take its figures."""
    specs = intents(experiment, load, seed, places)
    results = simulate(experiment, arm, load, seed, specs)
    return cell_of(results, arm.name, load.name, seed, keep_requests)


def cell_of(results: Results, arm: str, load: str, seed: int, keep_requests: bool) -> CellResult:
    """A cell from finished results."""
    rows = []
    for name in (ALL_CLASSES, *sorted(results.classes)):
        figures = results.summary(name or None)
        if name == ALL_CLASSES:
            engines = results.engine_summary()
            figures |= {f"engine_{key}": value for key, value in engines.items()}
            figures["refused"] = float(sum(results.refusals.values()))
        rows.append({"arm": arm, "load": load, "seed": seed, "service_class": name, **figures})
    requests: dict[str, NDArray[Any]] = {}
    if keep_requests:
        kept = results.measured()
        requests = {name: np.ascontiguousarray(results.columns[name][kept]) for name in REQUEST_COLUMNS}
    return CellResult(arm, load, seed, rows, results.classes, results.digest(), requests)


def arm_with(arm: Arm, kind: str, knobs: dict[str, float]) -> Arm:
    """The same arm with other knobs of one of its policies."""
    choice = arm.choice(kind)
    return arm.model_copy(update={kind: Choice(policy=choice.policy, knobs=knobs)})
