"""``/metrics`` against a real server's: every name, type, label, label value and bucket."""

import re
from pathlib import Path

import pytest

from sim.engine import EngineRequest, EngineScheduler, params_named
from sim.engines import InstanceSpec
from sim.engines.metrics import EngineMetrics

FIXTURE = Path(__file__).parents[2] / "fixtures" / "vllm-0.32.0" / "metric_names.txt"
CAPTURES = Path(__file__).parents[4] / "shared" / "captures" / "vllm-0.32.0"
OF_OURS = ("vllm:", "process_", "python_")
# What a label says about the machine that was captured, not about the format.
FREE_VALUES = {"engine", "model_name"}


class Exposition:
    """A parsed page: types by family, and by family the values seen of each label."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.labels: dict[str, dict[str, set[str]]] = {}
        self.values: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.types[name] = kind
            elif not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                self.values[series] = float(value)
                name, _, labels = series.partition("{")
                family = self._family(name)
                into = self.labels.setdefault(family, {})
                for label, label_value in re.findall(r'(\w+)="([^"]*)"', labels):
                    into.setdefault(label, set()).add(label_value)

    def _family(self, sample: str) -> str:
        if sample in self.types:
            return sample
        family = re.sub(r"_(bucket|count|sum)$", "", sample)
        assert family in self.types, f"{sample} has no # TYPE line"
        return family


def page(spec: InstanceSpec | None = None) -> Exposition:
    spec = spec or InstanceSpec(instance="eu-0", model="tiny")
    scheduler = EngineScheduler(spec.step_params)
    return Exposition(EngineMetrics(spec, scheduler, 1_700_000_000.5).exposition().decode())


def described(lines: list[str]) -> dict[str, tuple[str, dict[str, set[str] | None]]]:
    """``name | type | label={v,v}, label`` per line, as the capture's list of names has it."""
    result: dict[str, tuple[str, dict[str, set[str] | None]]] = {}
    for line in lines:
        name, kind, labels = (part.strip() for part in line.split("|"))
        found = re.findall(r"(\w+)(?:=\{([^}]*)\})?(?:, |$)", labels)
        result[name] = (kind, {label: set(values.split(",")) if values else None for label, values in found})
    return result


def assert_like(ours: Exposition, expected: dict[str, tuple[str, dict[str, set[str] | None]]]) -> None:
    for name, (kind, labels) in expected.items():
        assert ours.types.get(name) == kind, name
        assert set(ours.labels[name]) == set(labels), name
        for label, values in labels.items():
            if values is not None and name not in ("vllm:cache_config_info", "python_info"):
                assert ours.labels[name][label] == values, (name, label)


def test_every_family_of_the_fixture_is_there_with_its_labels_and_buckets() -> None:
    expected = described(FIXTURE.read_text().splitlines())
    assert len(expected) == 45
    ours = page()
    assert_like(ours, expected)
    known = (
        set(expected)
        | {f"{name.removesuffix('_total')}_created" for name in expected}
        | {f"{name}_created" for name in expected}
    )
    assert {n for n in ours.types if n.startswith("vllm:")} <= known


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures of a real server are not here")
def test_every_family_and_series_of_the_captured_pages_is_there() -> None:
    listed = (CAPTURES / "metric_names.txt").read_text().splitlines()
    assert_like(page(), described([line for line in listed if line.startswith(OF_OURS)]))
    ours = page()
    captured = Exposition((CAPTURES / "metrics_idle.txt").read_text())
    assert {n: k for n, k in ours.types.items() if n.startswith(OF_OURS)} == {
        n: k for n, k in captured.types.items() if n.startswith(OF_OURS)
    }
    info = "vllm:cache_config_info"
    ours_series = {s for s in ours.values if s.startswith("vllm:") and not s.startswith(info)}
    assert ours_series == {s for s in captured.values if s.startswith("vllm:") and not s.startswith(info)}


def test_figures_follow_the_scheduler_and_a_cancel_moves_no_histogram() -> None:
    spec = InstanceSpec(instance="eu-0", model="m", kv_tokens=1_600)
    scheduler = EngineScheduler(params_named("S2"), kv_tokens=1_600)
    metrics = EngineMetrics(spec, scheduler, 1_700_000_000.5)
    hashes = tuple(range(10))
    for name in ("done", "gone"):
        scheduler.submit(EngineRequest(name, 160, 5, hashes), 0.0)
    now_ms = 0.0
    for step in range(5):
        if step == 3:
            scheduler.cancel("gone")
        result = scheduler.step(now_ms)
        assert result is not None
        now_ms += result.duration_ms
        metrics.observe_step(result)
        for done in result.finished:
            metrics.observe_finished(done, max_tokens=5)
        if step == 0:
            during = Exposition(metrics.exposition().decode()).values
            assert during['vllm:num_requests_running{engine="0",model_name="m"}'] == 2
            assert during['vllm:kv_cache_usage_perc{engine="0",model_name="m"}'] > 0
    metrics.count_rejection()
    after = Exposition(metrics.exposition().decode()).values

    def value(name: str, labels: str = 'engine="0",model_name="m"') -> float:
        return after[f"vllm:{name}{{{labels}}}"]

    assert value("num_requests_running") == 0
    assert value("kv_cache_usage_perc") == 0
    assert value("generation_tokens_total") == 8  # 5 of one, 3 of the other
    assert value("time_to_first_token_seconds_count") == 2
    assert value("inter_token_latency_seconds_count") == 6
    assert value("e2e_request_latency_seconds_count") == 1
    assert value("e2e_request_latency_seconds_sum") == pytest.approx(now_ms / 1e3)
    assert value("request_success_total", 'engine="0",finished_reason="length",model_name="m"') == 1
    assert value("request_success_total", 'engine="0",finished_reason="abort",model_name="m"') == 0
    assert value("prompt_tokens_total") == 320
    assert value("prompt_tokens_cached_total") == 144
    assert value("prefix_cache_queries_total") == 320
    assert value("prefix_cache_hits_total") == 144
    assert value("prompt_tokens_created") == 1_700_000_000.5
    assert after["process_start_time_seconds"] == 1_700_000_000.5
    assert value("admission_rejections_total", 'model_name="m",reason="max_num_queued_reqs"') == 1


def test_cache_config_gives_the_sizes_of_the_cache() -> None:
    labels = page().labels["vllm:cache_config_info"]
    assert labels["block_size"] == {"16"}
    assert labels["num_gpu_blocks"] == {"37500"}
    assert labels["kv_cache_size_tokens"] == {"600000"}
