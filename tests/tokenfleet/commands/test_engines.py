"""``tokenfleet engines`` as a process: it starts, lists itself, stops cleanly, and says what is wrong."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from tokenfleet.commands.engines import register

PROGRAM = """
import typer
from tokenfleet.commands.engines import register
app = typer.Typer()
app.callback()(lambda: None)
register(app)
app()
"""


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["engines", *arguments])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_engines_run_until_a_signal_and_leave_nothing(tmp_path: Path, number: signal.Signals) -> None:
    listed = tmp_path / "endpoints.yaml"
    arguments = ["engines", "--count", "2", "--port", "0", "--region", "eu", "--endpoints", str(listed)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 30
        while not listed.exists():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.02)
        endpoints = yaml.safe_load(listed.read_text())["endpoints"]
        assert [e["instance"] for e in endpoints] == ["eu-0", "eu-1"]
        for endpoint in endpoints:
            assert urllib.request.urlopen(f"{endpoint['url']}/health").status == 200
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert errors == ""
    assert endpoints[1]["url"] in output
    assert list(tmp_path.iterdir()) == []


def test_taken_port_is_one_sentence_and_exit_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("--port", str(port))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"can't listen on 127.0.0.1:{port}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--params", "S9"], "--params"),
        (["--speed", "0"], "--speed"),
        (["--count", "2", "--port", "9000"], "--port-base"),
        (["--count", "2", "--port-base", "65535"], "does not exist"),
        (["--config", "/absent/fleet.yaml"], "Can't read the instance file"),
    ],
)
def test_wrong_options_are_one_sentence_and_exit_1(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert "Traceback" not in result.output
