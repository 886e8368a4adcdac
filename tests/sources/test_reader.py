"""Captures give the right readings; drift, ranks and models give unknowns with a reason, never a guess."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.readings import UNKNOWN
from sources.engines.mapping import COUNTERS, EVERY, GAUGES, UnknownEngine, engines, mapping_of, parse_mapping
from sources.engines.reader import EngineSample, choose, guess_engine, read_engine

VLLM = mapping_of("vllm")
Capture = Callable[[str], bytes]

# Gauges and counters in the order of their models, then the process start; read off the captures by hand.
EXPECTED = {
    "idle": (0, 0, 0.0, 1_048_576, 32, 0, 0, 0, 0, 0, 0, 0, 1_795_980_784_940),
    "under_load": (
        *(8, 0, 0.0024719992675558133, 1_048_576, 32),
        *(4694, 2976, 777, 4694, 2976, 0, 0, 1_795_980_983_710),
    ),
    "after": (
        *(0, 0, 0.0, 1_048_576, 32),
        *(124_512, 29_760, 90_058, 124_512, 29_760, 0, 322, 1_795_980_983_710),
    ),
    "restart": (0, 0, 0.0, 1_048_576, 32, 0, 0, 0, 0, 0, 0, 0, 1_795_981_719_150),
    "small_cache": (
        *(0, 0, 0.0, 4096, 32),
        *(28_657, 22_592, 24_004, 28_657, 22_592, 57, 49, 1_795_981_770_040),
    ),
}


def _readings(sample: EngineSample) -> dict[str, float | None]:
    return {name: one.value for name, one in [*sample.gauges, *sample.counters]}


def _one(body: bytes, engine: str = "vllm") -> EngineSample:
    (sample,) = read_engine(body, mapping_of(engine))
    return sample


@pytest.mark.parametrize("name", EXPECTED)
def test_a_capture_of_a_real_server_gives_its_readings(capture: Capture, name: str) -> None:
    sample = _one(capture(name))
    *values, started = EXPECTED[name]
    assert list(_readings(sample).values()) == values
    assert sample.process_started_at_ms == started
    assert (sample.rank, sample.model) == (0, "tiny")
    assert sample.problems == []
    assert {one.quality for _, one in [*sample.gauges, *sample.counters]} == {"fresh"}
    assert set(sample.provenance) == {*GAUGES, *COUNTERS, "process_started_at_ms"}
    assert sample.provenance["kv_usage_ratio"] == "vllm:kv_cache_usage_perc"


def test_the_whole_captures_read_as_the_trimmed_ones(capture: Capture, shared_dir: Path) -> None:
    for name in EXPECTED:
        whole = (shared_dir / "captures" / "vllm-0.32.0" / f"metrics_{name}.txt").read_bytes()
        assert read_engine(whole, VLLM) == read_engine(capture(name), VLLM)


def test_a_vanished_metric_is_unknown_and_drift_names_it(capture: Capture) -> None:
    body = capture("under_load").replace(b"vllm:num_requests_running", b"vllm:requests_in_batch")
    sample = _one(body)
    assert sample.gauges.requests_running == UNKNOWN
    (problem,) = sample.problems
    assert (problem.kind, problem.drift, problem.reading) == ("missing", True, "requests_running")
    assert "vllm:num_requests_running" in problem.sentence
    assert sample.gauges.requests_waiting.value == 0.0


def test_the_older_name_of_the_cache_usage(capture: Capture) -> None:
    body = capture("under_load").replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
    sample = _one(body)
    assert sample.gauges.kv_usage_ratio.value == 0.0024719992675558133
    assert sample.provenance["kv_usage_ratio"] == "vllm:gpu_cache_usage_perc"
    assert sample.problems == []


def test_an_older_cache_config_gives_the_capacity_from_its_blocks(capture: Capture) -> None:
    body = capture("small_cache").replace(b'kv_cache_size_tokens="4096",', b"")
    sample = _one(body)
    assert sample.gauges.kv_capacity_tokens.value == 128 * 32
    assert sample.problems == []
    body = body.replace(b'num_gpu_blocks="128"', b'num_gpu_blocks="None"')
    sample = _one(body)
    assert sample.gauges.kv_capacity_tokens == UNKNOWN
    assert [problem.kind for problem in sample.problems] == ["missing"]


RUNNING = 'vllm:num_requests_running{engine="0",model_name="tiny"} '
RUNNING_X = RUNNING.replace("}", ',x="1"}')
RUNNING_TYPE = "# TYPE vllm:num_requests_running gauge\n"


def _swapped(text: str, old: str, new: str) -> bytes:
    assert old in text
    return text.replace(old, new).encode()


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (RUNNING_TYPE, RUNNING_TYPE.replace("gauge", "counter"), "wrong_type"),
        (RUNNING_TYPE, "", "wrong_type"),
        (RUNNING + "8.0", RUNNING + "NaN", "not_finite"),
        (RUNNING + "8.0", RUNNING + "+Inf", "not_finite"),
        (RUNNING + "8.0", RUNNING + "1e999", "not_finite"),
        (RUNNING + "8.0", RUNNING + "-1.0", "out_of_bounds"),
        (RUNNING + "8.0", RUNNING + "1e99", "out_of_bounds"),
        (RUNNING + "8.0", RUNNING + "eight", "unparseable"),
        (RUNNING + "8.0", f"{RUNNING}8.0\n{RUNNING}8.0", "duplicate"),
        (RUNNING + "8.0", f"{RUNNING}8.0\n{RUNNING_X}9.0", "ambiguous"),
        (RUNNING + "8.0", RUNNING + "8.0 1795980784940", "stamped"),
    ],
)
def test_what_can_not_be_believed_is_unknown_with_its_kind(
    capture: Capture, old: str, new: str, kind: str
) -> None:
    sample = _one(_swapped(capture("under_load").decode(), old, new))
    assert sample.gauges.requests_running == UNKNOWN
    assert [(problem.kind, problem.reading) for problem in sample.problems] == [(kind, "requests_running")]
    assert sample.counters.generation_tokens_total.value == 777


def test_a_nan_in_one_of_the_series_of_a_sum_spoils_the_sum(capture: Capture) -> None:
    line = b'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} '
    sample = _one(capture("after").replace(line + b"0.0", line + b"NaN"))
    assert sample.counters.requests_finished_total == UNKNOWN
    assert sample.problems[0].kind == "not_finite"


def test_ranks_are_read_apart() -> None:
    body = RUNNING_TYPE.encode() + b"".join(
        b'vllm:num_requests_running{engine="%d",model_name="m"} %d\n' % (rank, 10 + rank)
        for rank in (0, 1, 10)
    )
    body += b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3\n"
    samples = read_engine(body, VLLM)
    assert [(s.rank, s.gauges.requests_running.value) for s in samples] == [(0, 10), (1, 11), (10, 20)]
    assert all(s.gauges.requests_waiting == UNKNOWN for s in samples), "whose 3 it is, nobody can tell"


def test_models_are_read_apart_and_the_served_one_is_chosen() -> None:
    head = b"# TYPE vllm:num_requests_running gauge\n"
    lines = (
        b'vllm:num_requests_running{engine="0",model_name="%s"} %d\n' % pair
        for pair in ((b"a", 1), (b"b", 2))
    )
    info = b'# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{engine="0",block_size="16"} 1\n'
    samples = read_engine(head + b"".join(lines) + info, VLLM)
    assert [(s.model, s.gauges.requests_running.value) for s in samples] == [("a", 1), ("b", 2)]
    assert [s.gauges.kv_block_tokens.value for s in samples] == [16, 16]
    assert choose(samples, "b") == [samples[1]]
    (other,) = choose(samples, "c")
    assert (other.gauges.requests_running, other.problems[0].kind) == (UNKNOWN, "other_model")
    (unnamed,) = choose(samples, None)
    assert (unnamed.gauges.requests_running, unnamed.problems[0].kind) == (UNKNOWN, "ambiguous")


@pytest.mark.parametrize("label", [b"x", b"-1", b"99999", b""])
def test_a_rank_that_is_none_is_a_problem(capture: Capture, label: bytes) -> None:
    body = capture("under_load").replace(
        b'vllm:num_requests_running{engine="0"', b'vllm:num_requests_running{engine="%s"' % label
    )
    sample = _one(body)
    assert sample.gauges.requests_running == UNKNOWN
    assert {problem.kind for problem in sample.problems} == {"ambiguous", "missing"}


def test_metrics_of_something_else_give_one_sample_of_unknowns() -> None:
    (sample,) = read_engine(b"# TYPE go_goroutines gauge\ngo_goroutines 3\n", VLLM, default_model="m")
    assert set(_readings(sample).values()) == {None}
    assert {problem.kind for problem in sample.problems} == {"missing"}
    assert len(sample.problems) + len(sample.not_yet) == len(GAUGES) + len(COUNTERS) + 1
    assert sample.model == "m"


def test_llama_cpp_has_no_labels_and_its_rates_are_not_counters(llama_cpp_page: bytes) -> None:
    (sample,) = read_engine(llama_cpp_page, mapping_of("llamacpp"), default_model="tiny")
    known = {name: value for name, value in _readings(sample).items() if value is not None}
    assert known == {
        "requests_running": 3,
        "requests_waiting": 1,
        "prompt_tokens_total": 46 + 44,
        "prompt_tokens_cached_total": 44,
        "generation_tokens_total": 10,
    }
    assert (sample.rank, sample.model, sample.process_started_at_ms) == (0, "tiny", None)
    assert sample.problems == []


def test_llama_cpp_without_its_cached_count_has_no_whole_prompt_count(llama_cpp_page: bytes) -> None:
    body = llama_cpp_page.replace(b"llamacpp:prompt_tokens_cached_total 44\n", b"")
    sample = _one(body, "llama.cpp")
    assert sample.counters.prompt_tokens_total == UNKNOWN
    assert {(p.kind, p.reading) for p in sample.problems} == {
        ("missing", "prompt_tokens_total"),
        ("missing", "prompt_tokens_cached_total"),
    }


def test_sglang_sums_what_it_splits() -> None:
    labels = 'model_name="m",engine_type="unified",tp_rank="0",pp_rank="0"'
    body = (
        f"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{{{labels}}} 5\n"
        f"# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{{{labels}}} 2\n"
        f"# TYPE sglang:token_usage gauge\nsglang:token_usage{{{labels}}} 0.25\n"
        "# TYPE sglang:cache_config_info gauge\n"
        'sglang:cache_config_info{page_size="64",num_pages="10"} 1\n'
        "# TYPE sglang:cached_tokens_total counter\n"
        'sglang:cached_tokens_total{model_name="m",cache_source="device"} 7\n'
        'sglang:cached_tokens_total{model_name="m",cache_source="host"} 4\n'
    ).encode()
    sample = _one(body, "sglang")
    readings = _readings(sample)
    assert (readings["requests_running"], readings["requests_waiting"]) == (5, 2)
    assert (readings["kv_usage_ratio"], readings["kv_capacity_tokens"]) == (0.25, 640)
    assert readings["prompt_tokens_cached_total"] == 11
    assert readings["generation_tokens_total"] is None
    assert guess_engine(body) == "sglang"


def test_the_engine_is_told_by_its_metrics(capture: Capture, llama_cpp_page: bytes) -> None:
    assert guess_engine(capture("idle")) == "vllm"
    assert guess_engine(llama_cpp_page) == "llama.cpp"
    assert guess_engine(b"# TYPE x gauge\nx 1\n") is None


def test_every_mapping_is_whole_and_an_unknown_engine_lists_them() -> None:
    assert set(engines()) >= {"vllm", "sglang", "llama.cpp"}
    with pytest.raises(UnknownEngine, match=r"'tgi2'.*vllm"):
        mapping_of("tgi2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("gauges: {speed: []}", "no gauge is called speed"),
        ("not_told: {}", "neither mapped nor said to be not told"),
        ("gauges: {requests_running: [{metric: 'a b', type: gauge}]}", "gauges.requests_running.0.metric"),
        ("gauges: {requests_running: [{type: gauge}]}", "either `metric` or `sum_of` or `product_of`"),
        ("colour: red", "colour"),
        ("engine: [", "not YAML"),
    ],
)
def test_a_wrong_mapping_says_where(change: str, said: str) -> None:
    good = dict.fromkeys(EVERY, "it does not say")
    base = (
        "engine: x\nabout: x\nversions: all\nevidence: capture\nrank_label: null\nmodel_label: null\n"
        f"process_started_at_ms: []\ngauges: {{}}\ncounters: {{}}\nnot_told: {good}\n"
    )
    assert parse_mapping(base, "x.yaml").wanted == frozenset()
    key = change.split(":")[0]
    lines = [line for line in base.splitlines() if not line.startswith(f"{key}:")]
    with pytest.raises(ValueError, match=r"x\.yaml") as refused:
        parse_mapping("\n".join([*lines, change]), "x.yaml")
    assert said in str(refused.value)
