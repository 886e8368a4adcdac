"""Mappings: which metric of an engine fills which reading. They are data (YAML), one file per engine."""

from __future__ import annotations

from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from schemas.base import EARLIEST_MS, LATEST_MS, Name
from schemas.readings import EngineCounters, EngineGauges

MetricName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=200)]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=200)]

GAUGES: tuple[str, ...] = tuple(EngineGauges.model_fields)
COUNTERS: tuple[str, ...] = tuple(EngineCounters.model_fields)
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


class Candidate(_Part):
    """One way to fill a reading, tried in the order of the list. The first that the text has decides."""

    metric: MetricName | None = None
    sum_of: list[MetricName] = Field(default=[], description="Instead of metric: all of these, added.")
    type: Literal["gauge", "counter"]
    labels: dict[LabelName, str] = Field(default={}, description="Only series with these label values.")
    sum_over: list[LabelName] = Field(default=[], description="Series that differ in these are added.")
    labels_product: list[LabelName] = Field(
        default=[], description="The value is the product of these labels' values (info metrics)."
    )
    scale: Annotated[float, Field(gt=0)] = 1.0
    pick: Literal["only", "min"] = Field(
        default="only", description="Several series: an error, or the least."
    )
    shared: bool = Field(default=False, description="Holds for all models of a rank, without naming them.")

    @model_validator(mode="after")
    def _one_source(self) -> Candidate:
        if (self.metric is None) == (not self.sum_of):
            raise ValueError("a candidate has either `metric` or `sum_of`")
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """The sample names that this candidate reads."""
        return (self.metric,) if self.metric is not None else tuple(self.sum_of)

    @property
    def provenance(self) -> str:
        """For people: the metric, with labels where those carry the value."""
        name = " + ".join(self.metrics)
        return f"{name}{{{' x '.join(self.labels_product)}}}" if self.labels_product else name


class Mapping(_Part):
    """How to read one engine."""

    engine: Name
    aliases: list[Name] = []
    about: str
    evidence: Literal["capture", "observation", "documentation"] = Field(
        description="What the mapping was checked against."
    )
    metrics_path: str = "/metrics"
    health_path: str = "/health"
    rank_label: LabelName | None
    model_label: LabelName | None
    process_started_at_ms: list[Candidate]
    boot_header: str | None = Field(
        default=None, description="A response header that is constant in a process life and changes with it."
    )
    gauges: dict[str, list[Candidate]]
    counters: dict[str, list[Candidate]]
    not_told: dict[str, str] = Field(default={}, description="Readings that this engine has no metric for.")

    @model_validator(mode="after")
    def _every_reading_once(self) -> Mapping:
        for kind, known, given in (("gauge", GAUGES, self.gauges), ("counter", COUNTERS, self.counters)):
            if unknown := set(given) - set(known):
                raise ValueError(f"no {kind} is called {', '.join(sorted(unknown))}")
        told = set(self.gauges) | set(self.counters)
        if twice := told & set(self.not_told):
            raise ValueError(f"both mapped and not told: {', '.join(sorted(twice))}")
        if forgotten := set(GAUGES + COUNTERS) - told - set(self.not_told):
            raise ValueError(f"neither mapped nor said to be not told: {', '.join(sorted(forgotten))}")
        return self

    @cached_property
    def readings(self) -> dict[str, list[Candidate]]:
        """Candidates of all mapped readings."""
        return self.gauges | self.counters

    @cached_property
    def own_metrics(self) -> frozenset[str]:
        """Metrics whose series say which ranks and models there are (those that are shared don't)."""
        every = (one for candidates in self.readings.values() for one in candidates if not one.shared)
        return frozenset(name for one in every for name in one.metrics)

    @cached_property
    def wanted(self) -> frozenset[str]:
        """All sample names that any candidate reads."""
        every = [*self.readings.values(), self.process_started_at_ms]
        return frozenset(name for candidates in every for one in candidates for name in one.metrics)


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
