"""Running ``tokenfleet demo`` and ``tokenfleet up`` as a person would, for the tests beside this file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

WAIT_S = 60.0


def wait_for(what: str, check: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """The first truthy answer of ``check``; fails with ``what`` where there is none in time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if answer := check():
            return answer
        time.sleep(0.1)
    pytest.fail(f"{what} did not happen within {timeout_s:.0f} s")


class Demo:
    """A running ``tokenfleet demo``."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.data = folder / "data"
        self.summary = folder / "summary.json"
        self.output = folder / "output.txt"
        argv = [sys.executable, "-m", "tokenfleet", "demo", "--data", str(self.data)]
        argv += ["--summary", str(self.summary), *flags]
        with self.output.open("w") as out:
            self.process = subprocess.Popen(
                argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def state(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.data / "stack.json").read_text())
        except (OSError, ValueError):
            return None

    def finished_intents(self) -> int:
        ledger = self.data / "ledger.jsonl"
        return len(ledger.read_bytes().splitlines()) if ledger.exists() else 0

    def wait_finished(self, intents: int) -> None:
        """Wait until so many intents have finished; fails at once where the demo has ended."""

        def check() -> bool:
            assert self.process.poll() is None, f"The demo ended early:\n{self.text()}"
            return self.finished_intents() >= intents

        wait_for(f"{intents} finished intents", check, 120)

    def text(self) -> str:
        return self.output.read_text()

    def pids(self) -> list[int]:
        state = self.state()
        return [entry["pid"] for entry in state["processes"].values() if entry["pid"]] if state else []

    def kill(self, name: str) -> int:
        """SIGKILL a part; returns its pid."""
        state = self.state()
        assert state is not None
        pid = state["processes"][name]["pid"]
        os.kill(pid, signal.SIGKILL)
        return int(pid)

    def back(self, name: str, killed: int) -> bool:
        """Whether a part runs again, under another pid, and says that it is ready."""
        state = self.state()
        if state is None or state["processes"][name]["pid"] in (None, killed):
            return False
        try:
            with urllib.request.urlopen(state["urls"][name] + "/readyz", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def end(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the end; the summary. Fails with the output where the demo failed."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"The demo did not end in {timeout_s:.0f} s:\n{self.text()}")
        assert status == 0, self.text()
        return json.loads(self.summary.read_text())


def assert_books(summary: dict[str, Any]) -> None:
    books = summary["books"]
    assert summary["agree"] is True
    assert books["intents"] + books["unanswered"] == summary["offered"]
    assert books["unanswered"] <= summary["offered"] // 20
    assert books["missing"] == 0
    assert books["duplicates"] == 0
    assert books["produced"] == books["intents"]
    assert books["stored"] == books["intents"]


@contextmanager
def running_up(data: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """A running ``tokenfleet up`` on free ports; its ``stack.json``. It must end well and leave nothing."""
    argv = [sys.executable, "-m", "tokenfleet", "up", "--any-ports", "--data", str(data), *flags]
    output = data / "output.txt"
    with output.open("w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        until = time.monotonic() + 90
        while "Ready." not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.2)
        state = json.loads((data / "stack.json").read_text())
        yield {**state, "output": output, "data": data}
        state = json.loads((data / "stack.json").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
    assert status == 0
    pids = [entry["pid"] for entry in state["processes"].values()]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert "nothing is left running" in output.read_text()
    assert "Traceback" not in output.read_text()
