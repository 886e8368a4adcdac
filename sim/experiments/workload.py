"""From an experiment's workload, load and seed to the intents of one run; and what was synthesised for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from sim.des.clients import Arrivals, ClosedArrivals, OpenArrivals, PartlyOpenArrivals, sessions_of
from sim.experiments.files_io import resolve
from sim.experiments.spec import Experiment, Load
from sim.experiments.versions import asking_for_versions
from sim.workloads.classes import ClassProfile
from sim.workloads.generator import GeneratorShape
from sim.workloads.mixture import Lengths, RateStep, load_lengths, plan_from_mixture
from sim.workloads.plan import IntentSpec, PlanShape, plan_from_generator, plan_from_trace
from sim.workloads.traces import Trace, load_trace


@dataclass(frozen=True)
class Places:
    """Where files that an experiment names are looked for."""

    folder: Path
    traces: Path | None


def profiles_of(experiment: Experiment) -> tuple[ClassProfile, ...]:
    """The service classes."""
    return tuple(
        ClassProfile(
            item.name,
            item.share,
            item.ttft_slo_ms,
            item.tpot_slo_ms,
            item.client_timeout_ms,
            item.deadline_ms,
        )
        for item in experiment.workload.classes
    )


@lru_cache(maxsize=4)
def _trace(path: Path, skip_broken: bool, seed: int, jitter_ms: float | None) -> Trace:
    return load_trace(path, skip_broken=skip_broken, seed=seed, jitter_ms=jitter_ms)


@lru_cache(maxsize=8)
def _lengths(path: Path, skip_broken: bool) -> Lengths:
    return load_lengths(path, skip_broken=skip_broken)


def intents(experiment: Experiment, load: Load, seed: int, places: Places) -> tuple[IntentSpec, ...]:
    """All intents of a run, in order of arrival, with the versions that they ask for."""
    return asking_for_versions(_plan(experiment, load, seed, places), load.versions, seed)


def _plan(experiment: Experiment, load: Load, seed: int, places: Places) -> tuple[IntentSpec, ...]:
    workload = experiment.workload
    shape = PlanShape(
        classes=profiles_of(experiment),
        entry_shares=load.entry_shares or workload.entry_shares,
        residency_shares=workload.residency_shares,
    )
    duration_ms = None if workload.duration_s is None else workload.duration_s * 1_000.0
    if workload.kind == "mixture":
        return plan_from_mixture(
            shape.classes,
            {
                item.name: _lengths(
                    resolve(item.lengths, places.folder, places.traces), workload.skip_broken
                ).pairs
                for item in workload.classes
                if item.lengths is not None
            },
            rate_rps=load.rate_rps or 1.0,
            duration_ms=duration_ms or 0.0,
            seed=seed,
            modulation=workload.modulation,
            steps=[RateStep(step.at_s * 1_000.0, step.factor, step.shares) for step in load.steps],
            entry_shares=shape.entry_shares,
        )
    if workload.kind == "generator":
        return plan_from_generator(
            duration_ms=duration_ms or 0.0,
            rate_rps=load.rate_rps or 1.0,
            seed=seed,
            shape=shape,
            generator=GeneratorShape(
                mean_turns=dict.fromkeys((item.name for item in shape.classes), workload.mean_turns),
                modulation=workload.modulation,
            ),
        )
    path = resolve(workload.trace or "", places.folder, places.traces)
    requests = _trace(path, workload.skip_broken, seed, workload.jitter_ms).requests
    if load.rate_rps is not None:
        return plan_from_trace(
            requests, rate_rps=load.rate_rps, duration_ms=duration_ms, seed=seed, shape=shape
        )
    speed = load.speed or 1.0
    played_ms = None if duration_ms is None else duration_ms * speed
    specs = plan_from_trace(requests, duration_ms=played_ms, seed=seed, shape=shape)
    return tuple(replace(spec, at_ms=spec.at_ms / speed) for spec in specs)


def arrivals_of(experiment: Experiment, load: Load, seed: int, specs: Sequence[IntentSpec]) -> Arrivals:
    """The loop that the load's clients form."""
    clients = load.clients or experiment.clients
    if clients.loop == "open":
        return OpenArrivals(specs)
    sessions = sessions_of(specs)
    if clients.loop == "partly_open":
        return PartlyOpenArrivals(sessions, think_ms=clients.think_ms, seed=seed)
    return ClosedArrivals(sessions, users=load.users or 1, think_ms=clients.think_ms, seed=seed)


def notes(experiment: Experiment, places: Places) -> list[str]:
    """What was synthesised, and which rows of the files couldn't be used: every report says so."""
    workload = experiment.workload
    said: list[str] = []
    if workload.trace is not None:
        path = resolve(workload.trace, places.folder, places.traces)
        report = _trace(path, workload.skip_broken, experiment.seeds[0], workload.jitter_ms).report
        said.append(f"Trace {path.name}: {report.rows:,} usable rows, {len(report.broken)} broken ones.")
        if report.jitter_ms:
            said.append(
                f"Arrivals are jittered by U(0, {report.jitter_ms / 1_000:g} s), a draw for each seed."
            )
        said.append("Classes, service levels, deadlines, entry regions, residency and retries are ours.")
    elif workload.kind == "generator":
        said.append("No trace: the built-in generator, with the published length tables; all else is ours.")
    else:
        files = [item.lengths for item in workload.classes if item.lengths is not None]
        source = f"lengths drawn from {', '.join(files)}" if files else "lengths from the published tables"
        said.append(f"A mixture: {source}; arrivals, classes, service levels and retries are synthesised.")
        for name in files:
            lengths = _lengths(resolve(name, places.folder, places.traces), workload.skip_broken)
            said.append(f"Lengths {name}: {len(lengths.pairs):,} usable rows, {lengths.broken} broken ones.")
    if any(load.versions for load in experiment.loads):
        said.append("Which version of the model an intent asks for is drawn from shares of our own.")
    if experiment.clients.cancel_share:
        said.append(
            f"A share of {experiment.clients.cancel_share:g} of the clients leaves; that is synthetic."
        )
    return said
