"""Experiment files: what is wrong is found before anything runs, and named by its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.experiments.files_io import ExperimentError, built_in, find, load_experiment
from sim.experiments.workload import Places, notes
from tests.sim.experiments.small import TEXT, load

TRACES = Path("../shared/traces")


@pytest.mark.parametrize(
    ("before", "after", "line", "says"),
    [
        ("policy: rr", "policy: rrr", 20, "no balancer policy 'rrr'. Did you mean 'rr'?"),
        ("queue_weight: 1", "queue_weight: 77", 21, "must lie in 0 to 5, not 77"),
        ("queue_weight: 1", "wait: 1", 21, "has no knob 'wait'"),
        ("policy: static_cap", "policy: cap", 22, "no admission policy 'cap'"),
        ("rate_rps: 4", "rate_rps: -4", 18, "greater than 0"),
        ("rate_rps: 4", "speed: 4", 18, "only a trace has a speed"),
        ("engine: S2", "engine: S9", 8, "S1"),
        ("region: a,", "region: x,", 8, "no region 'x'"),
        ("base: RR", "base: R", 3, "no arm 'R'"),
        ("name: high", "name: low", 17, "used more than once"),
        ("kind: generator", "kind: trace", 9, "needs a file in 'trace'"),
        ("seeds: [1, 2]", "seeds: [1, x]", 4, "valid integer"),
        ("title: Tiny", "titel: Tiny", 2, "not permitted"),
        ("name: conversation", "name: chat", 13, "no built-in lengths for 'chat'"),
        ("{name: batch,", "{name: conversation,", 12, "one of the classes is named more than once"),
        ("{name: batch,", "{name: batch, lengths: x.csv,", 14, "only classes of a mixture"),
        ("{name: batch,", "{name: batch, share: -1,", 14, "greater than or equal to 0"),
        ("duration_s: 40", "duration_s: 40\n  jitter_ms: 5", 12, "a generator has no 'jitter_ms'"),
        ("duration_s: 40", "duration_s: 40\n  entry_shares: {a: 0}", 12, "a sum above 0"),
        ("duration_s: 40", "duration_s: 40\n  residency_shares: {eu: 0.5}", 12, "no residency class 'eu'"),
        ("seeds: [1, 2]", "seeds: [1, 1]", 4, "one of the seeds is named more than once"),
        ("rate_rps: 1}", "rate_rps: 0.1}", 17, "are 4 intents"),
        ("rate_rps: 4}", "rate_rps: 1e9}", 18, "intents; a run has 10 to"),
        ("rate_rps: 4}", "rate_rps: 4, clients: {backoff_ms: 9000}}", 18, "lies over its cap"),
        ("rate_rps: 4}", "rate_rps: 4, steps: [{at_s: 1}]}", 18, "only a mixture has steps"),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, before: str, after: str, line: int, says: str) -> None:
    assert before in TEXT
    with pytest.raises(ExperimentError) as caught:
        load(tmp_path, TEXT.replace(before, after, 1))
    told = [text for text in str(caught.value).splitlines() if text.startswith(f"tiny.yaml:{line}:")]
    assert told, str(caught.value)
    assert any(says in text for text in told), told


def test_a_missing_trace_and_a_broken_one_stop_before_running(tmp_path: Path) -> None:
    text = TEXT.replace("kind: generator", "kind: trace\n  trace: none.jsonl").replace("rate_rps", "speed")
    with pytest.raises(ExperimentError, match=r"tiny\.yaml:11: .*There is no trace file"):
        load(tmp_path, text)
    rows = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,12,3\n2023-11-16 18:15:47,0,3\n"
    (tmp_path / "none.jsonl").write_bytes(gzip.compress(rows))
    with pytest.raises(ExperimentError, match=r"tiny\.yaml:11: .*1 broken row"):
        load(tmp_path, text)
    experiment = load(tmp_path, text.replace("none.jsonl", "none.jsonl\n  skip_broken: true"))
    said = notes(experiment, Places(tmp_path, None))
    assert "1 usable rows, 1 broken ones" in said[0]


def test_not_yaml_and_not_a_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"tiny\.yaml:2: not YAML"):
        load(tmp_path, "name: [a\nb: }")
    with pytest.raises(ExperimentError, match="no experiment file nowhere; built in are"):
        find("nowhere")


def test_operations_on_engines_that_are_not_there_are_named(tmp_path: Path) -> None:
    text = TEXT.replace(
        "{name: high, rate_rps: 4}",
        "{name: high, rate_rps: 4, operations: [{at_s: 1, do: fail, replicas: [2]}]}",
    )
    with pytest.raises(ExperimentError, match="no replica 2; they are numbered 0 to 1"):
        load(tmp_path, text)


def test_broken_rows_of_lengths_are_counted_in_the_notes(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n10,1\nx,2\n")
    text = TEXT.replace("kind: generator", "kind: mixture").replace(
        "{name: batch,", "{name: batch, lengths: lengths.csv,"
    )
    with pytest.raises(ExperimentError, match=r"tiny\.yaml:14: .*1 broken rows; the first is line 3"):
        load(tmp_path, text)
    experiment = load(tmp_path, text.replace("duration_s: 40", "duration_s: 40\n  skip_broken: true"))
    said = notes(experiment, Places(tmp_path, None))
    assert "Lengths lengths.csv: 1 usable rows, 1 broken ones." in said


@pytest.mark.parametrize("name", built_in())
def test_every_built_in_experiment_is_sound(name: str) -> None:
    path = built_in()[name]
    if ".gz" in path.read_text(encoding="utf-8") and not TRACES.is_dir():
        pytest.skip("the traces aren't here")
    experiment = load_experiment(path, TRACES)
    assert experiment.name == name
    assert experiment.about
