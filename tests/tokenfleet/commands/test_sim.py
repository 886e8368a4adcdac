"""``tokenfleet sim``: a run ends in files, a table and a page; a bad file in a sentence with its line."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.sim.experiments.small import TEXT
from tokenfleet.cli import app

RUNNER = CliRunner()


def _file(folder: Path, text: str = TEXT) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text.replace("[1, 2]", "[1]").replace("duration_s: 40", "duration_s: 20"))
    return path


def test_run_writes_everything_and_report_makes_the_page_anew(tmp_path: Path) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    command = ["sim", "run", str(_file(tmp_path)), "--out", str(out), "--processes", "1"]
    result = RUNNER.invoke(app, [*command, "--json", str(figures)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        "cells.parquet",
        "requests.parquet",
        "run.json",
        "report.html",
    }
    assert "GIE" in result.output
    cells = json.loads(figures.read_text())["cells"]
    assert {cell["arm"] for cell in cells} >= {"RR", "GIE", "cap", "oracle: request"}
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert RUNNER.invoke(app, ["sim", "report", str(out)]).exit_code == 0
    assert (out / "report.html").read_text() == page


def test_a_bad_file_stops_with_its_line(tmp_path: Path) -> None:
    path = _file(tmp_path, TEXT.replace("policy: gie", "policy: giee"))
    result = RUNNER.invoke(app, ["sim", "run", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "tiny.yaml:21" in result.stderr
    assert "Did you mean 'gie'?" in result.stderr
    assert not (tmp_path / "out").exists()
    for command in (["sim", "report", str(tmp_path)], ["sim", "run", "no-such", "--out", str(tmp_path)]):
        failed = RUNNER.invoke(app, command)
        assert failed.exit_code == 1
        assert failed.stderr.startswith("error: ")


def test_lists() -> None:
    listed = RUNNER.invoke(app, ["sim", "list"])
    assert listed.exit_code == 0
    assert "tokenpilot-conversation" in listed.output
    policies = RUNNER.invoke(app, ["sim", "policies"])
    assert policies.exit_code == 0
    assert "predicted_ttft" in policies.output
    assert "near_tie_ms" in policies.output
