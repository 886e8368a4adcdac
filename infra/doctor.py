"""What this machine has of what the local stack needs, and how to get the rest."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from infra.errors import StackError
from infra.kafka.jars import KAFKA_VERSION, jars_cached, jars_dir, pinned_jars
from infra.kafka.java import MINIMUM_JAVA_MAJOR, find_java
from infra.llamacpp.wheel import WHERE_WHEELS_ARE, is_installed

_GIB = 1024**3
_PYTHON_MINIMUM = (3, 11)
_DISK_NEEDED_GIB = 1.0
_MEMORY_ADVISED_GIB = 3.0
"""Broker 0.4, ClickHouse up to 1, and some ten Python processes of about 0.1 each."""
_CORES_ADVISED = 2
_PROBE_TIMEOUT_S = 20.0


class CheckState(StrEnum):
    """Outcome of one check."""

    OK = "ok"
    WARNING = "warning"
    """Works, but less well."""
    ABSENT = "absent"
    """Optional, and not there."""
    MISSING = "missing"
    """Needed, and not there."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    state: CheckState
    found: str
    """What there is, in a few words."""
    remedy: str = ""
    """How to get what is missing; empty when nothing is to be done."""


def run_checks(data_dir: Path) -> list[Check]:
    """Look at this machine (`data_dir`: where the stack would keep its data) without changing anything."""
    return [
        _python(),
        _java(),
        _kafka_jars(),
        _clickhouse(),
        _disk(data_dir),
        _memory(),
        _cores(),
        _docker(),
        _llamacpp(),
        _optional_tool("chromium", "pictures of dashboards and reports"),
        _optional_tool("promtool", "checks of the Prometheus rules"),
    ]


def all_needed_present(checks: Sequence[Check]) -> bool:
    """Say whether the local stack can run here."""
    return all(check.state is not CheckState.MISSING for check in checks)


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The report as plain JSON values: `{"ok": bool, "checks": [{name, state, found, remedy}]}`."""
    return {"ok": all_needed_present(checks), "checks": [asdict(check) for check in checks]}


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info >= _PYTHON_MINIMUM:
        return Check("Python", CheckState.OK, found)
    wanted = ".".join(map(str, _PYTHON_MINIMUM))
    return Check("Python", CheckState.MISSING, found, f"install Python {wanted} or newer")


def _java() -> Check:
    try:
        java = find_java()
    except StackError as error:
        return Check("Java", CheckState.MISSING, f"none of version {MINIMUM_JAVA_MAJOR} or newer", str(error))
    return Check("Java", CheckState.OK, f"{java.version} ({java.origin}: {java.program})")


def _kafka_jars() -> Check:
    name = f"Apache Kafka {KAFKA_VERSION}"
    if jars_cached():
        return Check(name, CheckState.OK, f"{len(pinned_jars())} jars in {jars_dir()}")
    return Check(name, CheckState.MISSING, "not fetched yet", "run `tokenfleet doctor --fix` with a network")


def _clickhouse() -> Check:
    name = "ClickHouse (chdb)"
    remedy = "install tokenfleet[sink], or use a server with `--clickhouse URL`"
    if importlib.util.find_spec("chdb") is None:
        return Check(name, CheckState.MISSING, "the chdb package is not installed", remedy)
    # In a process of its own: it is large, and a build for another processor would end this one.
    answer = _output([sys.executable, "-c", "import chdb; print(chdb.__version__, chdb.engine_version)"])
    if answer is None:
        return Check(name, CheckState.MISSING, "chdb is installed but cannot be imported", remedy)
    version, _, engine = answer.partition(" ")
    return Check(name, CheckState.OK, f"{version} (engine {engine})")


def _llamacpp() -> Check:
    name = "llama.cpp (xllamacpp)"
    if not is_installed():
        return Check(
            name,
            CheckState.ABSENT,
            "not installed",
            f"optional, for a real engine: install tokenfleet[real-engine] ({WHERE_WHEELS_ARE})",
        )
    # In a process of its own, for the same reason.
    version = _output([sys.executable, "-c", "import xllamacpp; print(xllamacpp.__version__)"])
    if version is None:
        return Check(name, CheckState.ABSENT, "installed but cannot be imported", "optional: reinstall it")
    return Check(name, CheckState.OK, version)


def _disk(data_dir: Path) -> Check:
    folder = next(path for path in (data_dir.absolute(), *data_dir.absolute().parents) if path.exists())
    free_gib = shutil.disk_usage(folder).free / _GIB
    found = f"{free_gib:.1f} GiB free at {folder}"
    if free_gib >= _DISK_NEEDED_GIB:
        return Check("Disk", CheckState.OK, found)
    return Check(
        "Disk", CheckState.MISSING, found, f"free {_DISK_NEEDED_GIB:g} GiB there or use another folder"
    )


def _memory() -> Check:
    try:
        import psutil
    except ImportError:
        return Check("Memory", CheckState.WARNING, "unknown", "install tokenfleet[local] to have it checked")
    memory = psutil.virtual_memory()
    free_gib, total_gib = memory.available / _GIB, memory.total / _GIB
    found = f"{free_gib:.1f} of {total_gib:.1f} GiB available"
    if free_gib >= _MEMORY_ADVISED_GIB:
        return Check("Memory", CheckState.OK, found)
    return Check("Memory", CheckState.WARNING, found, f"the whole stack likes {_MEMORY_ADVISED_GIB:g} GiB")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores >= _CORES_ADVISED:
        return Check("Processor", CheckState.OK, f"{cores} cores")
    return Check(
        "Processor", CheckState.WARNING, f"{cores} core", "the demo's latencies will be those of a queue"
    )


def _docker() -> Check:
    optional = "optional: without it tests use the embedded Kafka"
    if shutil.which("docker") is None:
        return Check("Docker engine", CheckState.ABSENT, "no docker command", optional)
    version = _output(["docker", "version", "--format", "{{.Server.Version}}"])
    if version is None:
        return Check("Docker engine", CheckState.ABSENT, "does not answer", optional)
    return Check("Docker engine", CheckState.OK, version)


def _optional_tool(program: str, used_for: str) -> Check:
    path = shutil.which(program)
    if path is not None:
        return Check(program, CheckState.OK, path)
    return Check(program, CheckState.ABSENT, "not on PATH", f"optional: {used_for}")


def _output(argv: list[str]) -> str | None:
    """First line that a program prints, or None when it fails, hangs or prints nothing."""
    try:
        answer = subprocess.run(  # noqa: S603 - fixed argument lists
            argv, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0] if lines else None
