"""One llama.cpp server as a process: what it answers, how it ends, what it says when it can't start."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.llamacpp.wheel import is_installed
from infra.ports import free_port
from router.sse import StreamMeter
from sim.loadgen.sse import CompletionStream
from sim.workloads.prompts import WORDS, prompt_text

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not is_installed(), reason="no llama.cpp: the xllamacpp wheel is not installed"),
]


@contextmanager
def server(*flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server with the tiny model that answers; its address and its process."""
    port = free_port()
    argv = [sys.executable, "-m", "infra.llamacpp.server", "--port", str(port), *flags]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 30
        while not healthy(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < until
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()  # not SIGKILL: it takes its model's folder away
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def ask(url: str, **body: Any) -> bytes:
    with urllib.request.urlopen(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), timeout=30
    ) as answer:
        return answer.read()


def test_words_are_tokens_and_a_stream_is_counted_right() -> None:
    """By the router and by the load generator, with usage and without."""
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt_text(40, (), "x")}],
        "max_tokens": 9,
    }
    with server("--name", "some-model") as (url, _):
        whole = json.loads(ask(url, **asked))
        streams = [
            ask(url, **asked, stream=True, stream_options={"include_usage": usage}) for usage in (False, True)
        ]
        with urllib.request.urlopen(f"{url}/slots") as answer:
            slots = json.loads(answer.read())
    assert whole["model"] == "some-model"
    assert whole["usage"]["prompt_tokens"] == 41
    assert set(whole["choices"][0]["message"]["content"].split()) <= set(WORDS)
    for data in streams:
        meter, client = StreamMeter(), CompletionStream()
        for fold in (meter, client):
            fold.feed(data, 1)
            fold.close(2)
        assert (meter.content_chunks, meter.output_tokens, meter.prompt_tokens) == (9, 9, 41)
        assert (meter.finish_reason, meter.whole) == ("length", True)
        assert (client.content_chunks, client.tokens, client.finished) == (9, 9, True)
        assert meter.cached_tokens == 40
    assert [slot["is_processing"] for slot in slots] == [False] * 4


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with server() as (url, process):
        process.send_signal(signum)
        assert process.wait(20) == 0
        assert not healthy(url)
    assert list(tmp_path.iterdir()) == []


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "infra.llamacpp.server", *flags]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("--port", port)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"Port {port}" in ended.stderr
    assert "in use" in ended.stderr


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, or is it?")
    for path, says in (
        (broken, f"can't serve {broken}"),
        (tmp_path / "absent.gguf", "There is no model file"),
    ):
        ended = run("--port", str(free_port()), "--model-file", str(path))
        assert ended.returncode == 1
        assert says in ended.stderr.splitlines()[-1]
        assert "Traceback" not in ended.stderr
