"""``tokenfleet bench sim``: figures as JSON, and a clear end where the trace is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import sim as benchmark
from tokenfleet.cli import app


def test_it_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "DURATION_MS", 30_000.0)
    monkeypatch.setattr(benchmark, "TRACE", tmp_path / "none.gz")
    out = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["bench", "sim", "--large-seconds", "0", "--json", str(out)])
    assert done.exit_code == 0, done.output
    figures = json.loads(out.read_text())
    assert figures["steps_per_cpu_s"] > 0
    assert figures["workload"] == "generator"
    assert figures["machine"]["cores"] >= 1
    assert "thousand_instances" not in figures


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "sim", "--trace", str(tmp_path / "no.gz")])
    assert done.exit_code == 1
    assert "There is no trace file" in done.output
