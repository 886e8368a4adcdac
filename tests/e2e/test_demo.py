"""The whole loop through the CLI: the demo's books agree, also when its parts are killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.timeout(300)]
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


@pytest.fixture
def demo(tmp_path: Path, kafka):  # the fixture says whether a real broker can be had at all
    started: list[Demo] = []

    def start(*flags: str) -> Demo:
        started.append(Demo(tmp_path, *flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(30)


def assert_books(summary: dict[str, Any]) -> None:
    books = summary["books"]
    assert summary["agree"] is True
    assert books["intents"] + books["unanswered"] == summary["offered"]
    assert books["unanswered"] <= summary["offered"] // 20
    assert books["missing"] == 0
    assert books["duplicates"] == 0
    assert books["produced"] == books["intents"]
    assert books["stored"] == books["intents"]


def test_the_run_goes_on_and_the_books_agree_when_parts_are_killed(demo, record_property) -> None:
    run = demo("--duration", "30", "--rate", "5")
    run.wait_finished(15)
    pids = run.pids()
    for name in ("streams-0", "router-0", "sink"):
        killed, began = run.kill(name), time.monotonic()
        wait_for(f"{name} back", lambda name=name, killed=killed: run.back(name, killed))
        record_property(f"{name}_back_after_s", round(time.monotonic() - began, 1))
        print(f"{name} was back {time.monotonic() - began:.1f} s after its SIGKILL")
    summary = run.end(180)
    assert_books(summary)
    assert {"streams-0", "router-0", "sink"} <= set(summary["restarts"])
    assert summary["ok"] > 0.8 * summary["offered"]
    in_flight_at_most = summary["offered"] // 4
    assert summary["books"]["lost"] <= in_flight_at_most
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_trace_is_replayed_and_summed_up(demo, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [
        f"2023-11-16 18:15:{46 + i // 4:02d}.{250 * (i % 4):03d}0000,{200 + i},{10 + i}" for i in range(40)
    ]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    run = demo("--duration", "8", "--trace", str(trace))
    summary = run.end(180)
    assert_books(summary)
    assert summary["offered"] > 20
    assert set(summary) >= {"offered", "ok", "classes", "ttft_ms", "tpot_ms", "regions", "books"}
    assert set(summary["books"]) >= {"intents", "produced", "stored", "missing", "duplicates", "lost"}
    assert summary["books"]["lost"] == 0
    assert "books" in run.text()
    assert set(summary["regions"]) <= {"eu-west", "us-east", "ap-south"}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(demo, signum: int) -> None:
    run = demo("--duration", "60")
    run.wait_finished(3)
    pids = run.pids()
    assert len(pids) >= 6
    run.process.send_signal(signum)
    assert run.process.wait(60) != 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert "Traceback" not in run.text()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--trace", "{broken}"], "line 3"),
        (["--kafka", "127.0.0.1:1"], "No Kafka broker answered at 127.0.0.1:1"),
        (["--engine", "warp"], "warp"),
        (["--summary", "/nowhere/at/all.json"], "folder does not exist"),
    ],
)
def test_what_cant_be_started_is_one_sentence(demo, tmp_path: Path, flags: list[str], sentence: str) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.0000000,10,5\n2023-11-16 18:15:47.0000000,x,5\n"
    )
    run = demo(*[flag.format(broken=broken) for flag in flags])
    assert run.process.wait(90) == 1
    lines = [line for line in run.text().splitlines() if "error:" in line]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert "Traceback" not in run.text()


def test_a_folder_that_is_not_a_demos_is_left_alone(demo, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    keep = tmp_path / "data" / "thesis.txt"
    keep.write_text("years of work")
    run = demo("--duration", "5")
    assert run.process.wait(60) == 1
    assert keep.read_text() == "years of work"
    assert "left alone" in run.text()
