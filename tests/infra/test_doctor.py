"""The doctor's report, its JSON, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from infra import doctor
from infra.doctor import Check, CheckState, all_needed_present, as_json, run_checks
from infra.errors import StackError
from tokenfleet.commands.doctor import register

FINE = Check("Python", CheckState.OK, "3.12")
ABSENT = Check("Docker engine", CheckState.ABSENT, "does not answer", "optional: an engine")
MISSING = Check("Java", CheckState.MISSING, "none [of] them", "install one")


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["doctor", *arguments])
    return result.exit_code, result.output


def test_only_what_is_needed_counts() -> None:
    assert all_needed_present([FINE, ABSENT])
    assert not all_needed_present([FINE, MISSING])
    assert as_json([ABSENT]) == {
        "ok": True,
        "checks": [
            {
                "name": "Docker engine",
                "state": "absent",
                "found": "does not answer",
                "remedy": "optional: an engine",
            }
        ],
    }


def test_this_machine_is_looked_at_without_being_changed(tmp_path: Path) -> None:
    checks = run_checks(tmp_path / "not" / "there")
    assert {check.name for check in checks} >= {"Python", "Java", "ClickHouse (chdb)", "Disk", "Memory"}
    assert checks[0].state is CheckState.OK
    assert all(check.found for check in checks)
    assert all(check.remedy for check in checks if check.state is not CheckState.OK)
    assert list(tmp_path.iterdir()) == []


def test_something_missing_ends_with_status_1_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "run_checks", lambda data_dir: [FINE, MISSING])
    report = tmp_path / "report.json"
    status, output = run("--json", str(report))
    assert status == 1
    assert "none [of] them" in output
    assert "install one" in output
    assert "Missing: Java." in output
    assert json.loads(report.read_text()) == as_json([FINE, MISSING])


def test_all_there_ends_with_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_checks", lambda data_dir: [FINE, ABSENT])
    assert run()[0] == 0


def test_a_fix_that_fails_is_said_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise StackError("The network is away.")

    monkeypatch.setattr(doctor, "run_checks", lambda data_dir: [FINE])
    monkeypatch.setattr("infra.kafka.jars.jars_cached", lambda: False)
    monkeypatch.setattr("infra.kafka.jars.fetch_jars", fail)
    status, output = run("--fix")
    assert status == 1
    assert "The network is away." in output


def test_a_report_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "run_checks", lambda data_dir: [FINE])
    status, output = run("--json", str(tmp_path / "no" / "file.json"))
    assert status == 1
    assert "cannot be written" in output


def test_a_missing_real_engine_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "is_installed", lambda: False)
    (check,) = [check for check in run_checks(tmp_path) if check.name.startswith("llama.cpp")]
    assert check.state is CheckState.ABSENT
    assert "tokenfleet[real-engine]" in check.remedy
    assert all_needed_present([FINE, check])
