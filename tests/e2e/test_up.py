"""``tokenfleet up``: the stack as a person uses it, and what it says when it can't start."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import running_up

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.timeout(180)]


def tokenfleet(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokenfleet", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, kafka) -> Iterator[dict[str, Any]]:
    """A running stack on free ports; its ``stack.json``."""
    with running_up(tmp_path_factory.mktemp("up")) as state:
        yield state


def ask(stack: dict[str, Any], router: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = {"model": "llama-70b", "stream": True, "max_tokens": 5, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "hello there"}]
    request = urllib.request.Request(
        f"{stack['urls'][router]}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()


def test_every_address_is_printed_and_answers(stack) -> None:
    text = stack["output"].read_text()
    for name in ("source-0", "streams-0", "router-0", "router-1"):
        assert stack["urls"][name] in text
        with urllib.request.urlopen(stack["urls"][name] + "/readyz", timeout=10) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(stack["urls"][name] + "/metrics", timeout=10) as answer:
            assert b"# TYPE tokenfleet_" in answer.read()
    models = get(stack["urls"]["router-0"] + "/v1/models")["data"]
    assert [(model["id"], model["ready_endpoints"]) for model in models] == [("llama-70b@v1", 8)]


def test_a_request_its_decision_and_its_audit(stack, tmp_path: Path) -> None:
    status, headers, body = ask(
        stack, "router-0", **{"Idempotency-Key": "e2e-audit-1", "x-tokenfleet-residency": "eu"}
    )
    assert status == 200
    assert headers["x-tokenfleet-region"] == "eu-west"
    assert body.endswith(b"data: [DONE]\n\n")
    story: dict[str, Any] = {}
    until = time.monotonic() + 30
    while not story and time.monotonic() < until:
        out = tmp_path / "story.json"
        result = tokenfleet(
            "audit", "request", "e2e-audit-1", "--url", stack["clickhouse"], "--json", str(out)
        )
        if result.returncode == 0 and "still open" not in result.stdout:
            story = json.loads(out.read_text())
        time.sleep(0.3)
    assert "ok" in result.stdout
    assert "eu-west" in result.stdout
    residency = tokenfleet("audit", "residency", "--url", stack["clickhouse"])
    assert residency.returncode == 0
    assert "no violation" in residency.stdout
    goodput = tokenfleet("audit", "goodput", "--url", stack["clickhouse"])
    assert re.search(r"interactive +\d", goodput.stdout)
    assert tokenfleet("audit", "request", "no-such-thing", "--url", stack["clickhouse"]).returncode == 1


def test_a_forbidden_residency_is_refused_with_its_rule(stack) -> None:
    status, _, body = ask(stack, "router-1", **{"x-tokenfleet-residency": "moon"})
    assert status == 403
    assert b"residency" in body


def test_tables_are_fresh_and_leases_stay_within_the_cap(stack) -> None:
    now_rows = {
        name: get(f"{stack['urls']['router-1']}/v1/tables/{name}")["rows"]
        for name in ("instances", "regions", "quotas", "leases")
    }
    assert len(now_rows["instances"]) == 8
    assert {row["quality"] for row in now_rows["instances"]} == {"fresh"}
    assert {row["region"]: row["ready_endpoints"] for row in now_rows["regions"]} == {
        "eu-west": 3,
        "us-east": 3,
        "ap-south": 2,
    }
    for quota in now_rows["quotas"]:
        leases = [row for row in now_rows["leases"] if row["region"] == quota["region"]]
        assert leases
        assert quota["exposed_work_tokens"] <= quota["cap_work_tokens"]
        assert sum(row["work_tokens"] for row in leases) <= quota["cap_work_tokens"]


def test_malformed_requests_are_4xx(stack) -> None:
    for body, status in ((b"{", 400), (b'{"model": "nothing-like-it", "messages": []}', 404)):
        request = urllib.request.Request(stack["urls"]["router-0"] + "/v1/chat/completions", body)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == status
        assert json.loads(refused.value.read())["error"]["message"]


def test_a_taken_port_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8080))
        except OSError:
            pytest.skip("port 8080 is somebody else's on this machine")
        taken.listen()
        result = tokenfleet("up", "--data", str(tmp_path / "data"))
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert "8080" in lines[0]
    assert not (tmp_path / "data" / "stack.json").exists()
