"""Mappings: which metric of an engine fills which reading. They are data (YAML), one file per engine."""

from __future__ import annotations

from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from schemas.base import EARLIEST_MS, LATEST_MS, Name
from schemas.endpoints import Role
from schemas.readings import EngineCounters, EngineGauges
from schemas.telemetry import LatencyName

MetricName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=200)]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=200)]

GAUGES: tuple[str, ...] = tuple(EngineGauges.model_fields)
COUNTERS: tuple[str, ...] = tuple(EngineCounters.model_fields)
LATENCIES: tuple[str, ...] = get_args(LatencyName)
EVERY: tuple[str, ...] = (*GAUGES, *COUNTERS, *LATENCIES)
PROCESS_START = "process_started_at_ms"

_COUNT = (0.0, float(2**53))
BOUNDS: dict[str, tuple[float, float]] = {
    "requests_running": (0.0, 1e6),
    "requests_waiting": (0.0, 1e6),
    "kv_usage_ratio": (0.0, 1.0),
    "kv_capacity_tokens": (1.0, 1e12),
    "kv_block_tokens": (1.0, 1e6),
    PROCESS_START: (float(EARLIEST_MS), float(LATEST_MS)),
} | dict.fromkeys(COUNTERS, _COUNT)
"""What each reading can be, ends included; anything else is no reading but a problem."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Factor(_Part):
    """One factor of a product: a metric, and which of its series."""

    metric: MetricName
    labels: dict[LabelName, str] = {}


class Candidate(_Part):
    """One way to fill a reading, tried in the order of the list. The first that the text has decides."""

    metric: MetricName | None = None
    sum_of: list[MetricName] = Field(
        default=[],
        description="Instead of metric: all of these, added. Passed over only where nothing but what later "
        "candidates read is there (an older version); a part that is missing otherwise is a problem.",
    )
    product_of: list[Factor] = Field(default=[], description="Instead of metric: all of these, multiplied.")
    type: Literal["gauge", "counter", "histogram"] = Field(
        description="histogram: the metric is one of its samples, x_sum or x_count."
    )
    labels: dict[LabelName, str] = Field(default={}, description="Only series with these label values.")
    blank: list[LabelName] = Field(
        default=[], description="Only series without these labels, or with empty ones: others are parts."
    )
    lowest: list[LabelName] = Field(
        default=[], description="Series that differ in these are copies: that of the lowest values counts."
    )
    sum_over: list[LabelName] = Field(default=[], description="Series that differ in these are added.")
    labels_product: list[LabelName] = Field(
        default=[], description="The value is the product of these labels' values (info metrics)."
    )
    scale: Annotated[float, Field(gt=0)] = 1.0
    pick: Literal["only", "min"] = Field(
        default="only", description="Several series: an error, or the least."
    )
    shared: bool = Field(default=False, description="Holds for all models of a rank, without naming them.")
    secondary: bool = Field(
        default=False, description="Its series do not say which ranks and models there are; others do."
    )
    since: str | None = Field(default=None, description="The engine's version that brought this metric.")
    until: str | None = Field(default=None, description="The last version that has it.")

    @model_validator(mode="after")
    def _one_source(self) -> Candidate:
        if [self.metric is not None, bool(self.sum_of), bool(self.product_of)].count(True) != 1:
            raise ValueError("a candidate has either `metric` or `sum_of` or `product_of`")
        return self

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The sample names that this candidate reads."""
        if self.metric is not None:
            return (self.metric,)
        return tuple(self.sum_of) or tuple(dict.fromkeys(factor.metric for factor in self.product_of))

    @cached_property
    def provenance(self) -> str:
        """For people: the metric, with labels where those carry the value."""
        if self.product_of:
            return " x ".join(_with_labels(factor.metric, factor.labels) for factor in self.product_of)
        name = _with_labels(" + ".join(self.metrics), self.labels)
        return f"{name}{{{' x '.join(self.labels_product)}}}" if self.labels_product else name


def _with_labels(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f"{label}={value}" for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name


class Histogram(_Part):
    """One way to fill a latency: a Prometheus histogram (its name, without ``_bucket``)."""

    metric: MetricName
    labels: dict[LabelName, str] = {}
    lowest: list[LabelName] = []
    sum_over: list[LabelName] = []
    ms_per_unit: Annotated[float, Field(gt=0)] = 1000.0
    since: str | None = None
    until: str | None = None


class LoraLabels(_Part):
    """An info metric whose labels list the LoRA adapters at work; its newest series holds now."""

    metric: MetricName
    running: LabelName
    waiting: LabelName
    slots: LabelName | None = None


class Late(_Part):
    """Why a reading may rightly be absent. No excuse where the text has ``unless``, which comes with it."""

    why: str
    unless: MetricName | None = None


def _late(value: object) -> object:
    return {"why": value} if isinstance(value, str) else value


class Mapping(_Part):
    """How to read one engine."""

    engine: Name
    aliases: list[Name] = []
    about: str
    versions: str = Field(description="Which versions of the engine this table is for.")
    evidence: Literal["capture", "observation", "documentation"] = Field(
        description="What the mapping was checked against."
    )
    metrics_path: str = "/metrics"
    health_path: str = "/health"
    rank_label: LabelName | None
    model_label: LabelName | None
    role_label: LabelName | None = None
    role_values: dict[str, Role] = {}
    lora: LoraLabels | None = None
    process_started_at_ms: list[Candidate]
    boot_header: str | None = Field(
        default=None, description="A response header that is constant in a process life and changes with it."
    )
    gauges: dict[str, list[Candidate]]
    counters: dict[str, list[Candidate]]
    latencies: dict[LatencyName, list[Histogram]] = {}
    late: dict[str, Annotated[Late, BeforeValidator(_late)]] = Field(
        default={},
        description="Readings that may rightly be absent (before the first request, in some versions), and "
        "why. They are drift only once they were there and are gone within a boot.",
    )
    not_told: dict[str, str] = Field(default={}, description="Readings that this engine has no metric for.")

    @model_validator(mode="after")
    def _every_reading_once(self) -> Mapping:
        for kind, known, given in (
            ("gauge", GAUGES, set(self.gauges)),
            ("counter", COUNTERS, set(self.counters)),
            ("late reading", EVERY, set(self.late)),
        ):
            if unknown := given - set(known):
                raise ValueError(f"no {kind} is called {', '.join(sorted(unknown))}")
        told = {*self.gauges, *self.counters, *self.latencies}
        if twice := told & set(self.not_told):
            raise ValueError(f"both mapped and not told: {', '.join(sorted(twice))}")
        if forgotten := set(EVERY) - told - set(self.not_told):
            raise ValueError(f"neither mapped nor said to be not told: {', '.join(sorted(forgotten))}")
        return self

    @cached_property
    def readings(self) -> dict[str, list[Candidate]]:
        """Candidates of all mapped readings."""
        return self.gauges | self.counters

    @cached_property
    def own_metrics(self) -> frozenset[str]:
        """Metrics whose series say which ranks and models there are."""
        every = (one for candidates in self.readings.values() for one in candidates)
        return frozenset(
            name for one in every if not one.shared and not one.secondary for name in one.metrics
        )

    @cached_property
    def wanted(self) -> frozenset[str]:
        """All sample names that any candidate reads; latencies are read apart (see ``histograms``)."""
        every = [*self.readings.values(), self.process_started_at_ms]
        names = {name for candidates in every for one in candidates for name in one.metrics}
        names |= {late.unless for late in self.late.values() if late.unless}
        return frozenset(names | ({self.lora.metric} if self.lora else set()))


class UnknownEngine(ValueError):  # noqa: N818 - reads as what happened
    """No mapping is there for an engine of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no mapping for the engine {name!r}; there are {', '.join(engines())}.")


def parse_mapping(text: str, where: str) -> Mapping:
    """A mapping from YAML text; raises ValueError with a sentence that names ``where`` and the field."""
    try:
        return Mapping.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not YAML: {error}.") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the mapping"
        raise ValueError(f"{where}: {place}: {first['msg']}.") from None


@cache
def _all() -> dict[str, Mapping]:
    folder = files("sources.engines.mappings")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    mappings = [parse_mapping((folder / name).read_text("utf-8"), name) for name in found]
    return {mapping.engine: mapping for mapping in mappings}


def engines() -> tuple[str, ...]:
    """The engines that there are mappings for."""
    return tuple(sorted(_all()))


def mapping_of(engine: str) -> Mapping:
    """The mapping of an engine (or an alias of one); raises UnknownEngine."""
    for mapping in _all().values():
        if engine == mapping.engine or engine in mapping.aliases:
            return mapping
    raise UnknownEngine(engine)
