"""``tokenfleet source read`` as people and scripts see it, and the agent's errors at start."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from schemas.readings import EngineCounters, EngineGauges
from tokenfleet.commands import source

app = typer.Typer()
source.register(app)
app.command("other")(lambda: None)
CAPTURES = Path(__file__).resolve().parent.parent / "fixtures" / "vllm-0.32.0"


def _run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["source", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_the_table_names_value_quality_and_metric() -> None:
    code, out, _ = _run("read", CAPTURES / "metrics_small_cache.txt")
    assert code == 0
    line = next(line for line in out.splitlines() if "preemptions_total" in line)
    assert line.split() == ["preemptions_total", "57", "fresh", "vllm:num_preemptions_total"]
    assert "No problems" in out


def test_problems_stand_below_the_table(tmp_path: Path, capture: Callable[[str], bytes]) -> None:
    page = tmp_path / "page.txt"
    page.write_bytes(capture("after").replace(b"vllm:num_requests_waiting{", b"vllm:queued{"))
    code, out, _ = _run("read", page, "--engine", "vllm")
    assert code == 0
    assert "missing: requests_waiting is unknown" in out
    assert "No problems" not in out


def test_json_is_a_list_with_an_object_per_rank_and_model(tmp_path: Path, llama_cpp_page: bytes) -> None:
    page = tmp_path / "page.txt"
    page.write_bytes(llama_cpp_page)
    code, out, _ = _run("read", page, "--json", "-", "--model", "tiny")
    assert code == 0
    (one,) = json.loads(out)
    assert (one["rank"], one["model"]) == (0, "tiny")
    assert one["requests_running"] == {
        "value": 3.0,
        "quality": "fresh",
        "metric": "llamacpp:requests_processing",
    }
    assert one["kv_usage_ratio"] == {"value": None, "quality": "unknown", "metric": None}
    assert one["problems"] == []
    assert {*EngineGauges.model_fields, *EngineCounters.model_fields} < set(one)
    to = tmp_path / "out.json"
    code, out, _ = _run("read", page, "--json", to, "--model", "tiny")
    assert code == 0
    assert json.loads(to.read_text()) == [one]
    assert "requests_running" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["read", "/nowhere/page.txt"], "can't be read"),
        (["read", CAPTURES / "sse_chat.txt"], "not Prometheus text"),
        (["read", CAPTURES / "metrics_idle.txt", "--engine", "vlm"], "no mapping for the engine 'vlm'"),
        (["read", CAPTURES / "metrics_idle.txt", "--json", "/nowhere/x"], "can't be written"),
        (["read", "http://127.0.0.1:1"], "can't be reached"),
        ([], "--config FILE is missing"),
        (["--config", "/nowhere/f.yaml"], "can't be read"),
    ],
)
def test_one_sentence_and_status_1(words: list[object], said: str) -> None:
    code, out, err = _run(*words)
    assert code == 1
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert out == ""


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("endpoints: []\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = _run("--config", config, "--port", taken.getsockname()[1])
    assert code == 1
    assert "Can't listen on 127.0.0.1:" in err


def test_json_has_latencies_role_and_adapters_too() -> None:
    code, out, _ = _run("read", CAPTURES / "metrics_after.txt", "--json", "-")
    assert code == 0
    (one,) = json.loads(out)
    ttft = one["latencies"]["ttft"]
    assert (ttft["count"], ttft["metric"]) == (324, "vllm:time_to_first_token_seconds")
    assert ttft["mean_ms"] == pytest.approx(149_599.6289 / 324)
    assert 60 <= ttft["p50_ms"] <= 250 <= ttft["p99_ms"]
    assert (one["role"], one["lora"]) == (None, None)
    code, out, _ = _run("read", CAPTURES / "metrics_idle.txt", "--json", "-")
    idle = json.loads(out)[0]["latencies"]["ttft"]
    assert (idle["count"], idle["mean_ms"], idle["p50_ms"]) == (0, None, None), "nothing measured is not 0 ms"


def test_the_table_shows_latencies_and_what_labels_say(tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    page.write_bytes(
        (CAPTURES / "metrics_after.txt").read_bytes() + b"# TYPE vllm:lora_requests_info gauge\n"
        b'vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} 1.7e9\n'
    )
    code, out, _ = _run("read", page)
    assert code == 0
    assert "vllm:inter_token_latency_seconds" in out
    assert "LoRA adapters running: sql; waiting: none; 2 slots." in out
    assert "No problems" in out


def test_what_rightly_is_not_there_yet_says_so_in_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    page.write_text("# TYPE tgi_queue_size gauge\ntgi_queue_size 0\n")
    code, out, _ = _run("read", page)
    assert code == 0
    line = next(line for line in out.splitlines() if "requests_finished_total" in line)
    assert "Appears with the first finished request." in line
    assert "No problems" in out


def test_the_engines_and_how_one_is_read() -> None:
    code, out, _ = _run("engines")
    assert code == 0
    assert "| `vllm` |" in out
    code, out, _ = _run("engines", "sglang")
    assert "sglang:num_running_reqs" in out
    assert "not from a capture" in out
    code, _, err = _run("engines", "vlm")
    assert code == 1
    assert "no mapping for the engine 'vlm'" in err
