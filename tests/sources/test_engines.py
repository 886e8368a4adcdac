"""The engines that no capture was at hand of, as their documentation and sources say; and older names.

Each page here is written after the engine's own documentation or source (docs/engines.md names them); a real
capture takes its place as soon as there is one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.readings import EngineCounters, EngineGauges
from sources.discovery.config import parse_config
from sources.engines.describe import overview, table
from sources.engines.mapping import EVERY, engines, mapping_of
from sources.engines.reader import EngineSample, choose, guess_engine, read_engine


def _readings(sample: EngineSample) -> dict[str, float]:
    return sample.values


def _one(text: str, engine: str) -> EngineSample:
    (sample,) = read_engine(text.encode(), mapping_of(engine), latencies=True)
    return sample


def _histogram(name: str, labels: str = "", sums: float = 3.0) -> str:
    comma = "," if labels else ""
    braces = f"{{{labels}}}" if labels else ""
    return (
        f"# TYPE {name} histogram\n"
        f'{name}_bucket{{{labels}{comma}le="0.1"}} 1\n'
        f'{name}_bucket{{{labels}{comma}le="+Inf"}} 2\n'
        f"{name}_sum{braces} {sums}\n{name}_count{braces} 2\n"
    )


# ------------------------------------------------------------------------------------------------ SGLang

SGLANG = 'model_name="m",engine_type="{role}",tp_rank="0",pp_rank="0",moe_ep_rank="0"'


def _sglang(role: str = "unified", more: str = "") -> str:
    labels = SGLANG.format(role=role)
    return (
        f"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{{{labels}}} 5\n"
        f"# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{{{labels}}} 2\n"
        f"# TYPE sglang:token_usage gauge\nsglang:token_usage{{{labels}}} 0.25\n"
        f"# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens{{{labels}}} 640\n{more}"
    )


def test_a_fresh_sglang_tells_its_gauges_and_counters_come_with_use() -> None:
    sample = _one(_sglang(), "sglang")
    assert _readings(sample) == {
        "requests_running": 5,
        "requests_waiting": 2,
        "kv_usage_ratio": 0.25,
        "kv_capacity_tokens": 640,
    }
    assert sample.problems == []
    assert "Appears with the first finished request." in sample.not_yet["generation_tokens_total"]
    assert sample.role == "both"


@pytest.mark.parametrize(("said", "role"), [("prefill", "prefill"), ("decode", "decode"), ("other", None)])
def test_sglang_prefill_and_decode_servers_queue_in_more_places(said: str, role: str | None) -> None:
    labels = SGLANG.format(role=said)
    queues = "".join(
        f"# TYPE sglang:{name} gauge\nsglang:{name}{{{labels}}} {value}\n"
        for name, value in (
            ("num_prefill_bootstrap_queue_reqs", 3),
            ("num_decode_prealloc_queue_reqs", 4),
            ("num_decode_transfer_queue_reqs", 10),
        )
    )
    sample = _one(_sglang(said, queues), "sglang")
    assert sample.role == role
    assert _readings(sample)["requests_waiting"] == 2 + 3 + 4 + 10
    partly = queues.replace("num_decode_transfer_queue_reqs", "num_decode_moving_queue_reqs")
    sample = _one(_sglang(said, partly), "sglang")
    assert "requests_waiting" not in sample.values, "a queue that was renamed must not be left out silently"
    assert [(p.kind, p.reading) for p in sample.problems] == [("missing", "requests_waiting")]


def test_sglang_totals_not_parts_and_one_of_the_tensor_ranks() -> None:
    total = SGLANG.format(role="unified") + ',priority=""'
    part = total.replace('priority=""', 'priority="1"')
    copy = total.replace('tp_rank="0"', 'tp_rank="1"')
    page = "# TYPE sglang:num_running_reqs gauge\n" + "".join(
        f"sglang:num_running_reqs{{{labels}}} {value}\n"
        for labels, value in ((total, 7), (part, 3), (copy, 6))
    )
    assert _readings(_one(page, "sglang"))["requests_running"] == 7


def test_sglang_data_parallel_ranks_share_what_no_rank_is_named_for() -> None:
    page = "# TYPE sglang:num_running_reqs gauge\n" + "".join(
        f'sglang:num_running_reqs{{model_name="m",dp_rank="{rank}",tp_rank="{rank * 2}"}} {rank + 1}\n'
        for rank in (0, 1)
    )
    page += '# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total{model_name="m"} 900\n'
    samples = read_engine(page.encode(), mapping_of("sglang"))
    assert [(s.rank, s.values) for s in samples] == [
        (0, {"requests_running": 1}),
        (1, {"requests_running": 2}),
    ]
    assert "prompt_tokens_total" in samples[0].not_yet, "the whole engine's count is no single rank's"


def test_sglang_counts_and_latencies() -> None:
    page = _sglang() + (
        "# TYPE sglang:cached_tokens_total counter\n"
        'sglang:cached_tokens_total{model_name="m",cache_source="device"} 7\n'
        'sglang:cached_tokens_total{model_name="m",cache_source="host"} 4\n'
        "# TYPE sglang:num_retracted_reqs gauge\n"
        f"sglang:num_retracted_reqs{{{SGLANG.format(role='unified')}}} 1\n"
        "# TYPE sglang:num_retracted_requests_total counter\n"
        f"sglang:num_retracted_requests_total{{{SGLANG.format(role='unified')}}} 9\n"
    )
    page += _histogram("sglang:time_to_first_token_seconds", 'model_name="m"')
    page += _histogram("sglang:queue_time_seconds", SGLANG.format(role="unified"))
    sample = _one(page, "sglang")
    assert sample.values["prompt_tokens_cached_total"] == 11
    assert sample.values["preemptions_total"] == 9
    assert {one.name: one.counts for one in sample.latencies} == {"ttft": (1, 1), "queue": (1, 1)}
    assert guess_engine(page.encode()) == "sglang"


# --------------------------------------------------------------------------------------- TensorRT-LLM

TRTLLM = 'engine_type="undefined",model_name="m"'


def test_trtllm_serve() -> None:
    gauges = {
        "num_requests_running": 3,
        "num_requests_waiting": 1,
        "kv_cache_utilization": 0.5,
        "kv_cache_max_blocks": 100,
        "kv_cache_tokens_per_block": 32,
    }
    page = "".join(
        f'# TYPE trtllm_{name} gauge\ntrtllm_{name}{{{TRTLLM},pid="71"}} {value}\n'
        for name, value in gauges.items()
    )
    page += "# TYPE trtllm_request_success_total counter\n" + "".join(
        f'trtllm_request_success_total{{{TRTLLM},finished_reason="{reason}"}} {count}\n'
        for reason, count in (("stop", 5), ("length", 2))
    )
    page += _histogram("trtllm_time_per_output_token_seconds", TRTLLM)
    sample = _one(page, "trtllm-serve")
    assert sample.values == {
        "requests_running": 3,
        "requests_waiting": 1,
        "kv_usage_ratio": 0.5,
        "kv_capacity_tokens": 3200,
        "kv_block_tokens": 32,
        "requests_finished_total": 7,
    }
    assert (
        sample.provenance["kv_capacity_tokens"]
        == "trtllm_kv_cache_max_blocks x trtllm_kv_cache_tokens_per_block"
    )
    assert [one.name for one in sample.latencies] == ["tpot"], "a request's mean is no time between tokens"
    assert sample.problems == []
    assert guess_engine(page.encode()) == "trtllm"
    assert mapping_of("trtllm").metrics_path == "/prometheus/metrics"


def test_triton_speaks_of_many_models_and_the_backend_of_one() -> None:
    def family(name: str, label: str, values: dict[str, float], kind: str = "gauge") -> str:
        return f"# TYPE {name} {kind}\n" + "".join(
            f'{name}{{{label}="{key}",model="tensorrt_llm",version="1"}} {value}\n'
            for key, value in values.items()
        )

    page = family(
        "nv_trt_llm_request_metrics",
        "request_type",
        {"active": 9, "max": 512, "scheduled": 6, "context": 2, "waiting": 3},
    )
    page += family(
        "nv_trt_llm_kv_cache_block_metrics",
        "kv_cache_block_type",
        {"max": 6239, "free": 6238, "used": 1, "tokens_per": 64, "reused": 4, "fraction": 0.125},
    )
    page += family("nv_llm_input_token_len_sum", "response_metric_type", {"total_input_tokens": 700}, "x")
    page = page.replace("# TYPE nv_llm_input_token_len_sum x", "# TYPE nv_llm_input_token_len histogram")
    page += "# TYPE nv_inference_request_success counter\n" + "".join(
        f'nv_inference_request_success{{model="{model}",version="1"}} {count}\n'
        for model, count in (("ensemble", 11), ("tensorrt_llm", 12), ("preprocessing", 13))
    )
    (sample,) = read_engine(page.encode(), mapping_of("triton"))
    assert sample.model == "tensorrt_llm"
    assert sample.values == {
        "requests_running": 6,
        "requests_waiting": 3,
        "kv_usage_ratio": 0.125,
        "kv_capacity_tokens": 6239 * 64,
        "kv_block_tokens": 64,
        "prompt_tokens_total": 700,
        "requests_finished_total": 12,
    }
    assert sample.problems == []
    assert "nv_trt_llm_request_metrics{request_type=scheduled}" in sample.provenance.values()
    assert guess_engine(page.encode()) == "triton-trtllm"
    (chosen,) = choose([sample], "ensemble")
    assert chosen.problems[0].kind == "other_model", "then metrics_model says how the engine calls it"
    older = page.replace('="fraction"', '="share"').replace('="waiting"', '="queued"')
    (sample,) = read_engine(older.encode(), mapping_of("triton"))
    assert sample.problems == []
    assert set(sample.not_yet) >= {"kv_usage_ratio", "requests_waiting"}


# ------------------------------------------------------------------------------------------------- TGI


def test_tgi_counts_tokens_in_the_sums_of_histograms() -> None:
    page = (
        "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 4\n"
        "# TYPE tgi_queue_size gauge\ntgi_queue_size 2\n"
        "# TYPE tgi_request_success counter\ntgi_request_success 31\n"
    )
    page += _histogram("tgi_request_generated_tokens", sums=800.0)
    page += _histogram("tgi_request_input_length", sums=900.0)
    page += _histogram("tgi_request_queue_duration")
    sample = _one(page, "tgi")
    assert sample.values == {
        "requests_running": 4,
        "requests_waiting": 2,
        "prompt_tokens_total": 900,
        "generation_tokens_total": 800,
        "requests_finished_total": 31,
    }
    assert [(one.name, one.sum_ms) for one in sample.latencies] == [("queue", 3000.0)]
    assert sample.problems == []
    assert guess_engine(page.encode()) == "tgi"
    summary = page.replace(
        "# TYPE tgi_request_generated_tokens histogram", "# TYPE tgi_request_generated_tokens summary"
    )
    changed = _one(summary, "tgi")
    assert "generation_tokens_total" not in changed.values
    assert [(p.kind, p.reading) for p in changed.problems] == [("wrong_type", "generation_tokens_total")]


# -------------------------------------------------------------------------------- older and other names


def test_an_older_llama_cpp_tells_how_full_its_cache_is(llama_cpp_page: bytes) -> None:
    more = b"# TYPE llamacpp:kv_cache_usage_ratio gauge\nllamacpp:kv_cache_usage_ratio 0.5\n"
    assert _one((llama_cpp_page + more).decode(), "llama.cpp").values["kv_usage_ratio"] == 0.5
    newer = _one(llama_cpp_page.decode(), "llama.cpp")
    assert "kv_usage_ratio" in newer.not_yet
    assert newer.problems == []


OLD_VLLM = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.73e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 2.0
# TYPE vllm:num_requests_swapped gauge
vllm:num_requests_swapped{model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 1.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",num_cpu_blocks="0"} 1.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{model_name="m"} 3.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 100.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m"} 50.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop",model_name="m"} 7.0
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{model_name="m"} 900.0
"""


def test_a_vllm_of_early_2025() -> None:
    page = OLD_VLLM + "".join(
        _histogram(f"vllm:{name}", 'model_name="m"')
        for name in (
            "time_to_first_token_seconds",
            "time_per_output_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
        )
    )
    sample = _one(page, "vllm")
    assert sample.problems == []
    assert sample.values == {
        "requests_running": 2,
        "requests_waiting": 1,
        "kv_usage_ratio": 0.25,
        "kv_capacity_tokens": 16_000,
        "kv_block_tokens": 16,
        "prompt_tokens_total": 100,
        "generation_tokens_total": 50,
        "preemptions_total": 3,
        "requests_finished_total": 7,
    }
    assert set(sample.not_yet) == {
        "prompt_tokens_cached_total",
        "prefix_queries_tokens_total",
        "prefix_hits_tokens_total",
    }
    assert {one.name for one in sample.latencies} == {"ttft", "itl", "e2e", "queue", "prefill", "decode"}


def test_a_new_vllm_without_its_prefix_counts_has_drifted() -> None:
    page = OLD_VLLM.replace("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc")
    (sample,) = read_engine(page.encode(), mapping_of("vllm"))
    assert {(p.reading, p.drift) for p in sample.problems} == {
        ("prefix_queries_tokens_total", True),
        ("prefix_hits_tokens_total", True),
    }


def test_lora_adapters_are_those_of_the_newest_series() -> None:
    page = OLD_VLLM + (
        "# TYPE vllm:lora_requests_info gauge\n"
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""}'
        " 1.73e+09\n"
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="poem"}'
        " 1.730000009e+09\n"
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.72e+09\n'
    )
    lora = _one(page, "vllm").lora
    assert lora is not None
    assert (lora.running, lora.waiting, lora.slots) == (("chat", "sql"), ("poem",), 4)
    assert _one(OLD_VLLM, "vllm").lora is None
    odd = page.replace("sql,chat", "a b\\n,c")
    (sample,) = read_engine(odd.encode(), mapping_of("vllm"))
    assert sample.lora is None
    assert [p.kind for p in sample.problems if p.metric == "vllm:lora_requests_info"] == ["unparseable"]


# ------------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("engine", engines())
def test_every_engines_table_has_every_reading(engine: str) -> None:
    mapping = mapping_of(engine)
    said = table(mapping)
    for reading in (*EngineGauges.model_fields, *EngineCounters.model_fields, *EVERY):
        assert f"\n| {reading} |" in said
    assert f"| `{engine}` |" in overview()
    for alias in mapping.aliases:
        assert mapping_of(alias) is mapping


@pytest.mark.parametrize("engine", engines())
def test_an_empty_page_of_any_engine_is_unknown_with_reasons(engine: str) -> None:
    mapping = mapping_of(engine)
    (sample,) = read_engine(b"# TYPE go_goroutines gauge\ngo_goroutines 3\n", mapping, latencies=True)
    assert sample.values == {}
    assert sample.latencies == []
    told = {problem.reading for problem in sample.problems} | set(sample.not_yet) | set(mapping.late)
    assert told | set(mapping.not_told) >= set(EVERY)


def test_the_page_about_engines_is_current() -> None:
    page = (Path(__file__).parents[2] / "docs/engines.md").read_text()
    assert overview() in page, "`tokenfleet source engines` prints the table for docs/engines.md"
    for engine in engines():
        assert f"### {engine}\n" in page
        assert table(mapping_of(engine)) in page, f"`tokenfleet source engines {engine}` prints its table"


def test_the_pages_example_is_a_configuration_that_the_agent_takes() -> None:
    page = (Path(__file__).parents[2] / "docs/engines.md").read_text()
    (example,) = re.findall(r"```yaml\n(endpoints:.*?)```", page, re.S)
    config = parse_config(example, "docs/engines.md")
    assert (len(config.endpoints), len(config.dns), len(config.kubernetes)) == (2, 1, 1)
