"""The ``/metrics`` of an emulated instance: names, types, labels and buckets of vLLM 0.32.

Counters and gauges are read from the scheduler when somebody scrapes; histograms are fed step by step. All of
it belongs to one life of one instance: a restart makes a new object, so counters begin at zero and
``_created`` and ``process_start_time_seconds`` change. Python and process figures are those of the emulator's
process, except the start time; the per-route ``http_*`` families of vLLM's web server are left out.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sim.engine import EngineScheduler, FinishedRequest, StepResult
from sim.engines.spec import InstanceSpec

_TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
_ITERATION: Final = (1.0, *(float(2**power) for power in range(3, 15)))
_SMALL: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTIONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
# fmt: off
_TTFT: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
                20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_TPOT: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                40.0, 80.0)
_REQUEST: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
                   240.0, 480.0, 960.0, 1920.0, 7680.0)
# fmt: on

_HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "request_prompt_tokens": ("Prompt tokens of finished requests.", _TOKENS),
    "request_generation_tokens": ("Generated tokens of finished requests.", _TOKENS),
    "iteration_tokens_total": ("Tokens per engine step.", _ITERATION),
    "request_max_num_generation_tokens": ("Most generated tokens of a request's choices.", _TOKENS),
    "request_params_n": ("The n parameter of requests.", _SMALL),
    "request_params_max_tokens": ("The max_tokens parameter of requests.", _TOKENS),
    "time_to_first_token_seconds": ("Time to first token.", _TTFT),
    "inter_token_latency_seconds": ("Time between tokens of a request.", _TPOT),
    "request_time_per_output_token_seconds": ("Mean time per output token of a request.", _TPOT),
    "e2e_request_latency_seconds": ("Time from arrival to the last token.", _REQUEST),
    "request_queue_time_seconds": ("Time in the queue.", _REQUEST),
    "request_inference_time_seconds": ("Time from first scheduling to the last token.", _REQUEST),
    "request_prefill_time_seconds": ("Time from first scheduling to the first token.", _REQUEST),
    "request_decode_time_seconds": ("Time from the first to the last token.", _REQUEST),
    "request_num_preemptions": ("Pre-emptions of a request.", _PREEMPTIONS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens computed, cached ones excluded.", _TOKENS),
}

# Labels of vllm:cache_config_info that say nothing about an emulated engine, at the engine's own defaults.
_CACHE_CONFIG_CONSTANTS: Final[dict[str, str]] = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "blake2b",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}


class EngineMetrics:
    """Metrics of one life of an instance; ``started_at_s`` is its start as a Unix time in seconds."""

    def __init__(self, spec: InstanceSpec, scheduler: EngineScheduler, started_at_s: float) -> None:
        self._registry = CollectorRegistry()
        GCCollector(self._registry)
        PlatformCollector(self._registry)
        self._registry.register(_ProcessFigures(started_at_s))
        self._engine = _EngineFigures(spec, scheduler, started_at_s)
        self._registry.register(self._engine)
        self._histograms: dict[str, Histogram] = {}
        for name, (text, buckets) in _HISTOGRAMS.items():
            family = Histogram(
                f"vllm:{name}", text, ["engine", "model_name"], buckets=buckets, registry=self._registry
            )
            self._histograms[name] = family.labels("0", spec.model)
        self._registry.register(_CacheConfig(spec, scheduler))

    def count_rejection(self) -> None:
        """A request was refused because the queue was full."""
        self._engine.rejections += 1

    def observe_step(self, result: StepResult) -> None:
        """Feed the histograms of tokens. Times are in ms, as the scheduler gives them."""
        histograms = self._histograms
        if result.iteration_tokens:
            histograms["iteration_tokens_total"].observe(result.iteration_tokens)
        for ttft_ms in result.ttft_ms:
            histograms["time_to_first_token_seconds"].observe(ttft_ms / 1e3)
        observe_gap = histograms["inter_token_latency_seconds"].observe
        for gap_ms, count in result.inter_token_ms.items():
            gap_s = gap_ms / 1e3
            for _ in range(count):
                observe_gap(gap_s)

    def observe_finished(self, done: FinishedRequest, max_tokens: int) -> None:
        """Feed the histograms of whole requests; cancelled ones never come here, as in vLLM."""
        decode_ms = done.finished_ms - done.first_token_ms
        values = {
            "request_prompt_tokens": done.prompt_tokens,
            "request_generation_tokens": done.output_tokens,
            "request_max_num_generation_tokens": done.output_tokens,
            "request_params_n": 1,
            "request_params_max_tokens": max_tokens,
            "request_time_per_output_token_seconds": decode_ms / max(1, done.output_tokens - 1) / 1e3,
            "e2e_request_latency_seconds": (done.finished_ms - done.arrival_ms) / 1e3,
            "request_queue_time_seconds": (done.scheduled_ms - done.queued_ms) / 1e3,
            "request_inference_time_seconds": (done.finished_ms - done.scheduled_ms) / 1e3,
            "request_prefill_time_seconds": (done.first_token_ms - done.scheduled_ms) / 1e3,
            "request_decode_time_seconds": decode_ms / 1e3,
            "request_num_preemptions": done.preemptions,
            "request_prefill_kv_computed_tokens": done.prompt_tokens - done.cached_tokens,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)

    def exposition(self) -> bytes:
        """All families in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)


class _EngineFigures(Collector):
    """Gauges and counters, taken from the scheduler at scrape time."""

    def __init__(self, spec: InstanceSpec, scheduler: EngineScheduler, started_at_s: float) -> None:
        self._model = spec.model
        self._scheduler = scheduler
        self._created_s = started_at_s
        self.rejections = 0

    def describe(self) -> Iterable[Metric]:
        return []  # the names are known to be unique; nothing to check at registration

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._scheduler, self._scheduler.counters
        computed = counters.prompt_tokens - counters.cached_prompt_tokens
        device_hits = counters.prefix_hit_tokens
        yield self._counter("estimated_flops_per_gpu", "Estimated FLOPs per GPU.", 0)
        yield self._counter("estimated_read_bytes_per_gpu", "Estimated bytes read per GPU.", 0)
        yield self._counter("estimated_write_bytes_per_gpu", "Estimated bytes written per GPU.", 0)
        yield self._gauge("num_requests_running", "Requests in the batch.", engine.running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", engine.waiting)
        yield self._gauge_by(
            "num_requests_waiting_by_reason",
            "Requests in the queue, by reason.",
            "reason",
            {"capacity": engine.waiting, "deferred": 0},
        )
        yield self._gauge_by(
            "engine_sleep_state",
            "Sleep state of the engine.",
            "sleep_state",
            {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
        )
        yield self._gauge("kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", engine.kv_usage)
        yield self._counter("prefix_cache_queries", "Tokens looked up.", counters.prefix_query_tokens)
        yield self._counter("prefix_cache_hits", "Tokens found.", counters.prefix_hit_tokens)
        yield self._counter("external_prefix_cache_queries", "Tokens looked up elsewhere.", 0)
        yield self._counter("external_prefix_cache_hits", "Tokens found elsewhere.", 0)
        yield self._counter("mm_cache_queries", "Multi-modal items looked up.", 0)
        yield self._counter("mm_cache_hits", "Multi-modal items found.", 0)
        yield self._counter("num_preemptions", "Pre-emptions.", counters.preemptions)
        yield self._counter("prompt_tokens", "Prompt tokens of completed prefills.", counters.prompt_tokens)
        yield self._counter_by(
            "prompt_tokens_by_source",
            "Prompt tokens of completed prefills, by source.",
            "source",
            {
                "local_compute": computed,
                "local_cache_hit": counters.cached_prompt_tokens,
                "external_kv_transfer": 0,
            },
        )
        yield self._counter("prompt_tokens_cached", "Cached prompt tokens.", counters.cached_prompt_tokens)
        yield self._counter_by(
            "prompt_tokens_cached_by_source",
            "Prompt tokens found in the cache at admission, by tier.",
            "source",
            {"device": device_hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0},
        )
        yield self._counter("generation_tokens", "Generated tokens.", counters.generation_tokens)
        yield self._counter_by(
            "request_success",
            "Finished requests, by reason.",
            "finished_reason",
            {
                "stop": counters.finished_stop,
                "length": counters.finished_length,
                "abort": 0,
                "error": 0,
                "repetition": 0,
            },
        )
        rejections = CounterMetricFamily(
            "vllm:admission_rejections", "Requests refused by a queue limit.", labels=["model_name", "reason"]
        )
        for reason, value in (("max_num_queued_reqs", self.rejections), ("max_num_queued_tokens", 0)):
            rejections.add_metric([self._model, reason], value, created=self._created_s)
        yield rejections

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["engine", "model_name"])
        family.add_metric(["0", self._model], value, created=self._created_s)
        return family

    def _counter_by(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["engine", "model_name", label])
        for label_value, value in values.items():
            family.add_metric(["0", self._model, label_value], value, created=self._created_s)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["engine", "model_name"])
        family.add_metric(["0", self._model], value)
        return family

    def _gauge_by(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["engine", "model_name", label])
        for label_value, value in values.items():
            family.add_metric(["0", self._model, label_value], value)
        return family


class _CacheConfig(Collector):
    """``vllm:cache_config_info``: the sizes of the KV cache as labels of a gauge that is always 1."""

    def __init__(self, spec: InstanceSpec, scheduler: EngineScheduler) -> None:
        block = str(scheduler.kv.block_tokens)
        self._labels = _CACHE_CONFIG_CONSTANTS | {
            "block_size": block,
            "effective_attention_block_size": block,
            "kv_cache_max_concurrency": str(scheduler.capacity_tokens / spec.context_tokens),
            "kv_cache_size_tokens": str(scheduler.capacity_tokens),
            "num_gpu_blocks": str(scheduler.kv.total_blocks),
        }

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Configuration of the KV cache.", labels=list(self._labels)
        )
        family.add_metric(list(self._labels.values()), 1)
        yield family


class _ProcessFigures(Collector):
    """``process_*`` of this process, with the instance's own start, from which CPU time counts too."""

    def __init__(self, started_at_s: float) -> None:
        self._process = ProcessCollector(registry=None)
        self._started_at_s = started_at_s
        self._cpu_before_s = 0.0
        for family in self._process.collect():
            if family.name == "process_cpu_seconds":
                self._cpu_before_s = family.samples[0].value

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the instance, Unix seconds.",
            value=self._started_at_s,
        )
        for family in self._process.collect():
            if family.name == "process_cpu_seconds":
                used_s = family.samples[0].value - self._cpu_before_s
                yield CounterMetricFamily("process_cpu_seconds", family.documentation, value=used_s)
            elif family.name != "process_start_time_seconds":
                yield family
