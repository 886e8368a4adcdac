"""``tokenfleet engines --real``: servers start, are listed, come back when killed, and leave nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from infra.errors import StackError
from infra.llamacpp.wheel import is_installed
from infra.ports import check_port_free, free_port
from tokenfleet.commands.engines import register

needs_wheel = pytest.mark.skipif(
    not is_installed(), reason="no llama.cpp: the xllamacpp wheel is not installed"
)


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["engines", *arguments])


def port_pair() -> int:
    """The first of two neighbouring ports that are both free."""
    while True:
        port = free_port()
        try:
            check_port_free(port + 1, "a test")
        except StackError:
            continue
        return port


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@needs_wheel
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_servers_come_back_when_killed_and_a_signal_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    listed, output = tmp_path / "endpoints.yaml", tmp_path / "output.txt"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    argv = [sys.executable, "-m", "tokenfleet", "engines", "--real", "2", "--region", "eu"]
    argv += ["--port-base", str(port_pair()), "--endpoints", str(listed)]
    with output.open("w") as out:
        process = subprocess.Popen(
            argv, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "160"}
        )

    def wait_for(check: Callable[[], object]) -> None:
        until = time.monotonic() + 30
        while not check():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.05)

    try:
        wait_for(lambda: "Ctrl-C" in output.read_text())
        endpoints = yaml.safe_load(listed.read_text())["endpoints"]
        assert [(e["instance"], e["engine"]) for e in endpoints] == [
            ("eu-0", "llama.cpp"),
            ("eu-1", "llama.cpp"),
        ]
        assert all(answers(endpoint["url"]) for endpoint in endpoints)
        pid = int(re.search(r"eu-1 .* (\d+) +http", output.read_text())[1])
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "eu-1 had died and runs again" in output.read_text())
        wait_for(lambda: answers(endpoints[1]["url"]))
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert not any(child.is_running() for child in children)
    assert not listed.exists()
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in output.read_text()


@needs_wheel
def test_a_taken_port_is_one_sentence_and_starts_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("--real", "1", "--port-base", str(port))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"Port {port}" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--speed", "2"], "--speed describes emulated engines"),
        (["--params", "S1"], "--params describes emulated engines"),
        pytest.param(["--model-size", "huge"], "choose tiny or small", marks=needs_wheel),
        pytest.param(["--port-base", "65535", "--real", "2"], "--port-base", marks=needs_wheel),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments: list[str], says: str) -> None:
    result = invoke("--real", "1", *arguments)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
