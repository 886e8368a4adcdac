"""A tiny experiment as text and as a model."""

from __future__ import annotations

from pathlib import Path

from sim.experiments.files_io import load_experiment
from sim.experiments.spec import Experiment

TEXT = """\
name: tiny
title: Tiny
base: RR
seeds: [1, 2]
warmup_share: 0.1
fleet:
  replicas:
    - {region: a, engine: S2, count: 2}
workload:
  kind: generator
  duration_s: 40
  classes:
    - {name: conversation, ttft_slo_ms: 5000, tpot_slo_ms: 100, client_timeout_ms: 9000, deadline_ms: 60000}
    - {name: batch, ttft_slo_ms: 30000, tpot_slo_ms: 200, client_timeout_ms: 60000, deadline_ms: 120000}
oracles: [request, pooled, goodput, static]
loads:
  - {name: low, rate_rps: 1}
  - {name: high, rate_rps: 4}
arms:
  - {name: RR, balancer: {policy: rr}}
  - {name: GIE, balancer: {policy: gie, knobs: {queue_weight: 1}}}
  - {name: cap, balancer: {policy: lor}, admission: {policy: static_cap, knobs: {cap: 16}}}
"""


def load(folder: Path, text: str = TEXT, traces: Path | None = None) -> Experiment:
    """The experiment of a text, read from a file."""
    path = folder / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return load_experiment(path, traces)
