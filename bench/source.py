"""What a source agent costs: 64 engines scraped four times a second, as CPU of one core and memory.

Run: ``tokenfleet bench source``. Everything is a process of its own: the engines (``bench.source_engines``:
vLLM's page of 49 kB that moves), a real Kafka, and the agent, started by its own command. CPU is what the
operating system charged the agent, kernel time included, over a window after its start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from infra.kafka.embedded import EmbeddedKafka
from infra.ports import free_port

SETTLE_S = 5.0
GOAL_CORE = 0.25
"""The share of a core that 64 engines at 4 Hz may cost."""


FAKE_NVML = Path(__file__).parents[1] / "tests" / "sources" / "gpu" / "fake_nvml.c"
"""Answers at once, so GPUs here cost what the agent itself does for them, without a driver's time."""


def run(
    *,
    engines: int = 64,
    hz: float = 4.0,
    seconds: float = 20.0,
    kafka: str | None = None,
    eight_gpus: bool = False,
) -> dict[str, Any]:
    """Measure; ``kafka`` (HOST:PORT) is used where given, else one is started for the benchmark.

    ``eight_gpus``: the agent also samples eight GPUs of a stand-in NVML library as often as the engines.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = kafka or stack.enter_context(_broker(folder / "kafka"))
        told = stack.enter_context(_engines(engines, folder))
        listed = folder / "endpoints.yaml"
        config: dict[str, Any] = {"endpoints": _endpoints(told["ports"])}
        environment = dict(os.environ)
        if eight_gpus:
            config["gpus"] = {"interval_ms": 1000.0 / hz, "host": "bench"}
            environment |= {"LD_LIBRARY_PATH": str(_fake_nvml(folder)), "FAKE_NVML": "eight"}
        listed.write_text(yaml.safe_dump(config))
        port = free_port()
        agent = stack.enter_context(_agent(listed, bootstrap, hz, port, folder, environment))
        _wait_ready(port, agent)
        time.sleep(SETTLE_S)
        process = psutil.Process(agent.pid)
        before, cpu_before_s, began_s = _scrapes(port), _cpu_s(process), time.monotonic()
        time.sleep(seconds)
        cpu_s, wall_s = _cpu_s(process) - cpu_before_s, time.monotonic() - began_s
        after = _scrapes(port)
        done = after["ok"] - before["ok"]
        return {
            "engines": engines,
            "gpus": 8 if eight_gpus else 0,
            "hz": hz,
            "page_bytes": told["page_bytes"],
            "seconds": round(wall_s, 1),
            "scrapes_per_s": round(done / wall_s, 1),
            "failed_scrapes": after["failed"] - before["failed"],
            "events_dropped": after["dropped"],
            "cpu_core_share": round(cpu_s / wall_s, 4),
            "cpu_ms_per_scrape": round(1000.0 * cpu_s / max(1, done), 3),
            "rss_mb": round(process.memory_info().rss / 2**20, 1),
            "goal_core_share": GOAL_CORE,
        }


def _endpoints(ports: list[int]) -> list[dict[str, Any]]:
    shared = {"engine": "vllm", "region": "bench", "pools": ["tiny@1"]}
    return [
        shared | {"instance": f"bench-{place}", "url": f"http://127.0.0.1:{port}"}
        for place, port in enumerate(ports)
    ]


def _fake_nvml(folder: Path) -> Path:
    """The folder of a stand-in for NVIDIA's library; RuntimeError without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("There is no C compiler (cc), so the stand-in for NVML cannot be made.")
    made = folder / "nvml"
    made.mkdir()
    library = made / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(FAKE_NVML)], check=True)
    return made


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    broker = EmbeddedKafka(folder)
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.stop()


@contextmanager
def _engines(count: int, folder: Path) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.source_engines", str(count)]
    with _process(command, folder / "engines.log", stdout=subprocess.PIPE) as process:
        line = process.stdout.readline() if process.stdout else b""
        if not line:
            raise RuntimeError("The benchmark's engines did not start; see their log.")
        yield json.loads(line)


@contextmanager
def _agent(
    listed: Path, bootstrap: str, hz: float, port: int, folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tokenfleet", "source", "--config", str(listed), "--kafka", bootstrap]
    command += ["--id", "source-bench", "--interval-ms", str(1000.0 / hz), "--port", str(port)]
    with _process(command, folder / "agent.log", env=environment) as process:
        yield process


@contextmanager
def _process(
    command: list[str], log: Path, stdout: int | None = None, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is ended when the block is, with what it says in a file."""
    with log.open("wb") as sink:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command, stdout=stdout or sink, stderr=sink, env=env
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(port: int, agent: subprocess.Popen[bytes], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if agent.poll() is not None:
            raise RuntimeError(f"The agent ended with status {agent.returncode}.")
        try:
            if _get(port, "/readyz"):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"The agent was not ready within {timeout_s:g} s.")


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def _scrapes(port: int) -> dict[str, int]:
    """The agent's own count of scrapes, by whether they succeeded, and of dropped events."""
    counts = {"ok": 0, "failed": 0, "dropped": 0}
    for line in _get(port, "/metrics").splitlines():
        if match := re.match(r'tokenfleet_source_scrapes_total\{.*result="(\w+)"\} ([0-9.e+]+)', line):
            counts["ok" if match[1] == "ok" else "failed"] += int(float(match[2]))
        elif match := re.match(r"tokenfleet_source_events_dropped ([0-9.e+]+)", line):
            counts["dropped"] = int(float(match[1]))
    return counts


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
