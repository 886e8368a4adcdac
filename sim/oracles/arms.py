"""Oracles as cells of the grid, beside the arms that they bound."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.des.metrics import percentile
from sim.engine.step_model import params_named
from sim.experiments.cell import ALL_CLASSES, CellResult
from sim.experiments.spec import Experiment, Load
from sim.experiments.workload import Places, intents
from sim.oracles.goodput import goodput_bound
from sim.oracles.pooled import pooled_bounds
from sim.oracles.requests import lower_bounds
from sim.workloads.plan import IntentSpec

PERCENTS = (50, 90, 95, 99)


def engine_of(experiment: Experiment) -> tuple[str, int]:
    """The one kind of engine of a fleet and how many there are. ValueError for a mixed fleet."""
    engines = {group.engine for group in experiment.fleet.replicas}
    if len(engines) != 1:
        raise ValueError(f"Oracles need a fleet of one kind of engine, not of {', '.join(sorted(engines))}.")
    return engines.pop(), sum(group.count for group in experiment.fleet.replicas)


def oracle_cell(
    experiment: Experiment, kind: str, name: str, load: Load, seed: int, places: Places
) -> CellResult:
    """The bound of this kind for one load and seed."""
    specs = intents(experiment, load, seed, places)
    row = _goodput(experiment, specs) if kind == "goodput" else _latency_bound(experiment, kind, specs)
    row = {"arm": name, "load": load.name, "seed": seed, "service_class": ALL_CLASSES, **row}
    return CellResult(name, load.name, seed, [row], (), "")


def _warmup_ms(experiment: Experiment, specs: tuple[IntentSpec, ...]) -> float:
    return experiment.warmup_share * (specs[-1].at_ms + 1.0)


def _latency_bound(experiment: Experiment, kind: str, specs: tuple[IntentSpec, ...]) -> dict[str, Any]:
    engine, count = engine_of(experiment)
    params, frontend = params_named(engine), experiment.fleet.frontend
    if kind == "pooled":
        ttft_ms, tpot_ms = pooled_bounds(specs, params, count, frontend=frontend)
    else:
        ttft_ms, tpot_ms = lower_bounds(specs, params, frontend=frontend)
    kept = np.array([spec.at_ms for spec in specs]) >= _warmup_ms(experiment, specs)
    return _latencies(ttft_ms[kept], tpot_ms[kept])


def _latencies(ttft_ms: NDArray[np.float64], tpot_ms: NDArray[np.float64]) -> dict[str, Any]:
    figures: dict[str, Any] = {"offered": len(ttft_ms), "ttft_mean_ms": float(ttft_ms.mean())}
    spoken = tpot_ms[~np.isnan(tpot_ms)]
    for percent in PERCENTS:
        figures[f"ttft_p{percent}_ms"] = percentile(ttft_ms, percent)
        figures[f"tpot_p{percent}_ms"] = percentile(spoken, percent)
    return figures


def _goodput(experiment: Experiment, specs: tuple[IntentSpec, ...]) -> dict[str, Any]:
    engine, count = engine_of(experiment)
    warmup_ms = _warmup_ms(experiment, specs)
    window_s = (specs[-1].at_ms + 1.0 - warmup_ms) / 1_000.0
    seats = experiment.fleet.replicas[0].max_num_seqs
    bound = goodput_bound(
        specs,
        params_named(engine),
        count,
        warmup_ms=warmup_ms,
        frontend=experiment.fleet.frontend,
        max_num_seqs=seats,
    )
    offered = sum(spec.at_ms >= warmup_ms for spec in specs)
    return {
        "offered": offered,
        "goodput_tokens_per_s": bound.tokens / window_s,
        "goodput_intents_per_s": bound.intents / window_s,
        "good_share_intents": bound.intents / offered if offered else 0.0,
    }
