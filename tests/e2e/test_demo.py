"""The whole loop through the CLI: the demo's books agree, also when its parts are killed in the middle."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.running import assert_books, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.timeout(300)]


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
