"""The mixture: rates, modulation, steps of rate and mix, and files of lengths."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from sim.workloads.classes import DEFAULT_CLASSES
from sim.workloads.mixture import RateStep, load_lengths, plan_from_mixture
from sim.workloads.traces import TraceError


def test_rate_shares_and_modulation_are_as_asked() -> None:
    specs = plan_from_mixture(DEFAULT_CLASSES, {}, rate_rps=50.0, duration_ms=600_000.0, seed=1)
    assert len(specs) == pytest.approx(30_000, rel=0.03)
    shares = {name: sum(s.service_class == name for s in specs) / len(specs) for name in ("long", "batch")}
    assert shares == pytest.approx({"long": 0.3, "batch": 0.2}, abs=0.02)
    interactive = np.array([s.at_ms for s in specs if s.service_class == "interactive"])
    per_minute = np.bincount((interactive // 60_000).astype(int))
    assert per_minute[0] / per_minute[1] == pytest.approx(3.0, rel=0.2)
    assert list(specs) == sorted(specs, key=lambda spec: spec.at_ms)


def test_steps_change_the_rate_and_the_mix() -> None:
    steps = [RateStep(100_000.0, 2.0, {"batch": 1.0})]
    specs = plan_from_mixture(
        DEFAULT_CLASSES, {}, rate_rps=20.0, duration_ms=200_000.0, seed=1, modulation=0.0, steps=steps
    )
    late = [spec for spec in specs if spec.at_ms >= 100_000.0]
    assert {spec.service_class for spec in late} == {"batch"}
    assert len(late) == pytest.approx(4_000, rel=0.1)
    assert len(specs) - len(late) == pytest.approx(2_000, rel=0.1)


def test_lengths_come_in_pairs_from_a_file_without_times(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv.gz"
    path.write_bytes(gzip.compress(b"num_prefill_tokens,num_decode_tokens\n10,1\n20.0,2\n"))
    rows = load_lengths(path).pairs
    assert rows.tolist() == [[10, 1], [20, 2]]
    specs = plan_from_mixture(
        DEFAULT_CLASSES[:1], {"interactive": rows}, rate_rps=5.0, duration_ms=60_000.0, seed=1
    )
    assert {(spec.input_tokens, spec.output_tokens) for spec in specs} == {(10, 1), (20, 2)}


def test_broken_rows_are_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n10,1\nx,2\n0,5\n")
    with pytest.raises(TraceError, match="2 broken rows; the first is line 3"):
        load_lengths(path)
    found = load_lengths(path, skip_broken=True)
    assert (found.pairs.tolist(), found.broken) == ([[10, 1]], 2)
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,12,3\nx,0,3\n")
    found = load_lengths(path, skip_broken=True)
    assert (found.pairs.tolist(), found.broken) == ([[12, 3]], 1)
    with pytest.raises(TraceError, match="no trace file"):
        load_lengths(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="above 0"):
        plan_from_mixture(DEFAULT_CLASSES, {}, rate_rps=0.0, duration_ms=1.0, seed=0)
