"""Oracle 3: the most good tokens that any schedule could give: a linear program over the cost of requests.

A request costs engine time: its uncached prefill (infinite shared cache), and a share of a step for each
output token, at the largest batch that keeps its TPOT level and fits into the memory: no batch is cheaper.
The work may be done at any time from its arrival to its last good moment (TTFT level plus output at the TPOT
level), in pieces, on any engine. Maximise the output tokens (or intents) that are served in full shares,
``0 <= x_i <= 1``, with as much engine time in each window as there are engines. It is a relaxation, so a
bound. Requests that can't meet their level alone on an idle engine are left out.

Alike requests (same arrival window, last window, cost class) are one variable, which changes nothing but the
size of the program; it is solved by HiGHS.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.step_model import StepParams
from sim.oracles.requests import cached_tokens, lower_bounds
from sim.workloads.plan import IntentSpec

Floats = NDArray[np.float64]


def decode_ms_per_token(
    params: StepParams, tpot_slo_ms: float, resident_tokens: float, *, max_num_seqs: int = 256
) -> float:
    """Engine time of one output token at the best batch; inf where no batch keeps the level."""
    per_sequence = params.decode_ms + params.resident_ms * resident_tokens * 1e-3
    most = min(
        float(max_num_seqs),
        params.kv_tokens / max(1.0, resident_tokens),
        (tpot_slo_ms - params.base_ms) / per_sequence,
    )
    return params.base_ms / most + per_sequence if most >= 1.0 else inf


def costs_ms(
    specs: Sequence[IntentSpec], params: StepParams, *, frontend: bool = True, max_num_seqs: int = 256
) -> Floats:
    """Engine time of every intent in ms; inf where its level can't be met at all."""
    ttft_ms, _ = lower_bounds(specs, params, frontend=frontend)
    cached = cached_tokens(specs).astype(float)
    prompts = np.array([spec.input_tokens for spec in specs], dtype=float)
    uncached = prompts - cached
    attention = uncached * (cached + 0.5 * uncached) * 1e-6
    costs: Floats = params.prefill_ms * uncached + params.attention_ms * attention
    for number, spec in enumerate(specs):
        if ttft_ms[number] > spec.ttft_slo_ms:
            costs[number] = inf
        elif spec.output_tokens > 1:
            resident = spec.input_tokens + 0.5 * spec.output_tokens
            token_ms = decode_ms_per_token(params, spec.tpot_slo_ms, resident, max_num_seqs=max_num_seqs)
            costs[number] += (spec.output_tokens - 1) * token_ms
    return costs


@dataclass(frozen=True, slots=True)
class GoodputBound:
    """Good output tokens and good intents at most, of those that arrive from the warm-up on."""

    tokens: float
    intents: float


def goodput_bound(
    specs: Sequence[IntentSpec],
    params: StepParams,
    instances: int,
    *,
    warmup_ms: float = 0.0,
    window_ms: float = 10_000.0,
    frontend: bool = True,
    max_num_seqs: int = 256,
) -> GoodputBound:
    """Solve both programs. RuntimeError where HiGHS isn't installed (the extra ``sim``) or finds none."""
    costs = costs_ms(specs, params, frontend=frontend, max_num_seqs=max_num_seqs)
    usable = np.isfinite(costs)
    begin = np.array([spec.at_ms for spec in specs])
    last = begin + np.array(
        [spec.ttft_slo_ms + (spec.output_tokens - 1) * spec.tpot_slo_ms for spec in specs]
    )
    tokens = np.array([spec.output_tokens for spec in specs], dtype=float)
    counts = usable & (begin >= warmup_ms)
    windows = int(np.ceil(last[usable].max(initial=0.0) / window_ms)) + 1
    first = (begin // window_ms).astype(int)
    until = (last // window_ms).astype(int)
    best = []
    for value in (tokens, np.ones(len(specs))):
        groups = _groups(value[counts], costs[counts], first[counts], until[counts])
        best.append(_solve(groups, windows, instances * window_ms))
    return GoodputBound(best[0], best[1])


def _groups(value: Floats, cost: Floats, first: NDArray[np.int64], until: NDArray[np.int64]) -> Floats:
    """Rows of (value, cost, first window, last window) of alike requests: same windows, density within 10%.

    A group is priced at the density of its best member, which only ever raises the bound (by 10% at most).
    """
    density = np.round(np.log(value / np.maximum(cost, 1e-9)) / np.log(1.1)).astype(int)
    keys = np.stack([first, until, density], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    sums = np.zeros((len(unique), 2))
    np.add.at(sums, inverse, np.stack([value, cost], axis=1))
    densest = np.zeros(len(unique))
    np.maximum.at(densest, inverse, value / np.maximum(cost, 1e-9))
    cheapest = sums[:, 0] / densest
    return np.column_stack([sums[:, 0], cheapest, unique[:, 0], unique[:, 1]])


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """The first solver of a process writes a banner to file descriptor 1, before any option can forbid it."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _solve(groups: Floats, windows: int, capacity_ms: float) -> float:
    try:
        import highspy
    except ModuleNotFoundError:
        raise RuntimeError("The goodput oracle needs HiGHS; install tokenfleet[sim].") from None
    if not len(groups):
        return 0.0
    # y[g, w]: engine ms of group g in window w. Maximise sum(value/cost * y).
    rows, columns, gains = [], [], []
    for number, (value, cost, first, until) in enumerate(groups):
        for window in range(int(first), int(until) + 1):
            rows.append(number)
            columns.append(window)
            gains.append(value / cost)
    count = len(gains)
    group_count = len(groups)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = count, group_count + windows
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.array(gains)
    lp.col_lower_ = np.zeros(count)
    lp.col_upper_ = np.full(count, highspy.kHighsInf)
    lp.row_lower_ = np.full(group_count + windows, -highspy.kHighsInf)
    lp.row_upper_ = np.concatenate([groups[:, 1], np.full(windows, capacity_ms)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, 2 * count + 1, 2)
    index = np.empty(2 * count, dtype=np.int32)
    index[0::2], index[1::2] = rows, np.array(columns) + group_count
    lp.a_matrix_.index_ = index
    lp.a_matrix_.value_ = np.ones(2 * count)
    with _quiet_stdout():
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    # The value is all that is asked for: no corner of the optimum is needed, and that is 40 times as fast.
    solver.setOptionValue("solver", "ipm")
    solver.setOptionValue("run_crossover", "off")
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS found no optimum of the goodput program: {solver.getModelStatus()}.")
    return float(solver.getInfo().objective_function_value)
