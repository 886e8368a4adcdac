"""What is impossible in an experiment's workload and clients; found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sim.experiments.spec import Clients, Experiment, Load
from sim.workloads.generator import MAX_REQUESTS
from sim.workloads.lengths import LENGTHS

Loc = tuple[int | str, ...]
Problem = tuple[Loc, str]

FEWEST_INTENTS = 10
"""A run that offers fewer says nothing."""

ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "jitter_ms": ("trace",),
    "mean_turns": ("generator",),
    "modulation": ("generator", "mixture"),
    "residency_shares": ("trace", "generator"),
}
"""Settings that only some kinds of workload have."""


def workload_problems(experiment: Experiment) -> Iterator[Problem]:
    """Settings that the kind doesn't have, shares of nothing, classes without lengths, impossible rates."""
    workload, kind = experiment.workload, experiment.workload.kind
    for name, kinds in ONLY_FOR.items():
        if name in workload.model_fields_set and kind not in kinds:
            yield ("workload", name), f"a {kind} has no {name!r}; only a {' or '.join(kinds)} has"
    yield from _class_problems(experiment)
    yield from _share_problems(experiment)
    yield from _twice("seeds", experiment.seeds, ("seeds",))
    yield from _twice("regions", experiment.fleet.regions, ("fleet", "regions"))
    yield from _client_problems(experiment.clients, ("clients",))
    for i, load in enumerate(experiment.loads):
        if load.clients is not None:
            yield from _client_problems(load.clients, ("loads", i, "clients"))
        yield from _rate_problems(experiment, load, ("loads", i))


def _class_problems(experiment: Experiment) -> Iterator[Problem]:
    workload = experiment.workload
    names = [item.name for item in workload.classes]
    yield from _twice("classes", names, ("workload", "classes"))
    for i, item in enumerate(workload.classes):
        if item.lengths is not None and workload.kind != "mixture":
            yield ("workload", "classes", i, "lengths"), "only classes of a mixture have a file of lengths"
        elif item.lengths is None and workload.kind != "trace" and item.name not in LENGTHS:
            message = (
                f"there are no built-in lengths for {item.name!r}; there are {', '.join(sorted(LENGTHS))}"
            )
            yield ("workload", "classes", i, "name"), message


def _share_problems(experiment: Experiment) -> Iterator[Problem]:
    workload = experiment.workload
    if not sum(item.share for item in workload.classes) > 0:
        yield ("workload", "classes"), "shares of classes need a sum above 0"
    if not sum(workload.entry_shares.values()) > 0:
        yield ("workload", "entry_shares"), "entry shares need a sum above 0"
    if sum(workload.residency_shares.values()) > 1.0 + 1e-9:
        yield ("workload", "residency_shares"), "residency shares are parts of all intents: at most 1 in all"
    for i, load in enumerate(experiment.loads):
        if load.entry_shares is not None and not sum(load.entry_shares.values()) > 0:
            yield ("loads", i, "entry_shares"), "entry shares need a sum above 0"
        for j, step in enumerate(load.steps):
            if step.shares is not None and not sum(step.shares.values()) > 0:
                yield ("loads", i, "steps", j, "shares"), "shares of classes need a sum above 0"


def _client_problems(clients: Clients, where: Loc) -> Iterator[Problem]:
    if clients.backoff_ms > clients.backoff_cap_ms:
        message = f"the backoff ({clients.backoff_ms:g} ms) lies over its cap ({clients.backoff_cap_ms:g} ms)"
        yield (*where, "backoff_ms"), message


def _rate_problems(experiment: Experiment, load: Load, where: Loc) -> Iterator[Problem]:
    duration_s = experiment.workload.duration_s
    if load.rate_rps is None or duration_s is None:
        return
    offered = load.rate_rps * duration_s
    if not FEWEST_INTENTS <= offered <= MAX_REQUESTS:
        message = (
            f"{load.rate_rps:g} requests/s for {duration_s:g} s are {offered:,.0f} intents; a run has "
            f"{FEWEST_INTENTS} to {MAX_REQUESTS:,}"
        )
        yield (*where, "rate_rps"), message


def _twice(what: str, values: Sequence[object], where: Loc) -> Iterator[Problem]:
    if len(set(values)) < len(values):
        yield where, f"one of the {what} is named more than once"
