"""From an engine's metrics text to typed readings, by a mapping. Pure: no clock, no I/O.

What is missing, of another type, not finite, out of bounds, twice there or not clearly *this* rank's and
model's is unknown, with a problem that says so. It is never 0 and never a guess.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.endpoints import Role
from schemas.readings import UNKNOWN, EngineCounters, EngineGauges, Reading
from sources.engines.histograms import Totals, read_latencies
from sources.engines.labels import Adapters
from sources.engines.mapping import COUNTERS, GAUGES, PROCESS_START, Mapping, engines, mapping_of
from sources.engines.plan import Failed, GroupPlan, Numbers, Plan, plan_of
from sources.problems import Problem
from sources.prometheus_text import Scan, parse, read_scan, scan

MAX_PLANS = 512
"""Layouts that are remembered: some for each engine kind, model and version of a fleet's node."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What one scrape says of one engine rank and model.

    ``values`` are the known readings; ``provenance`` names the metric of each, ``problems`` say why others
    are unknown, ``not_yet`` why some rightly are (they appear with use, or only in some versions).
    """

    rank: int
    model: str | None
    values: dict[str, float]
    process_started_at_ms: int | None
    role: Role | None = None
    lora: Adapters | None = None
    latencies: list[Totals] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    not_yet: dict[str, str] = field(default_factory=dict)

    @property
    def gauges(self) -> EngineGauges:
        """The gauges as readings."""
        return EngineGauges(**self._readings(GAUGES))

    @property
    def counters(self) -> EngineCounters:
        """The counters as readings."""
        return EngineCounters(**self._readings(COUNTERS))

    def _readings(self, names: Iterable[str]) -> dict[str, Reading]:
        return {
            name: Reading(value=self.values[name], quality="fresh", age_ms=0.0)
            if name in self.values
            else UNKNOWN
            for name in names
        }

    def known_counters(self) -> dict[str, float]:
        """Counters that have a value."""
        return {name: self.values[name] for name in COUNTERS if name in self.values}


_Layout = tuple[str, tuple[str, ...]]
_plans: OrderedDict[_Layout, Plan] = OrderedDict()


def read_engine(
    body: bytes, mapping: Mapping, *, default_model: str | None = None, latencies: bool = False
) -> list[EngineSample]:
    """The samples in a metrics text, by rank and model; at least one, all unknown if nothing is known.

    ``default_model`` names the model where the engine's metrics don't. ``latencies``: read the histograms
    too, which are most of a page. Raises sources.problems.Unreadable where the text is no exposition at all.
    """
    scanned = scan(body, mapping.wanted)
    plan, numbers = _planned(scanned, mapping)
    problems = list(plan.problems)
    started: float | None = None
    if plan.start is not None:
        try:
            started = plan.start.value(numbers)
        except Failed as failed:
            problems.append(failed.problem)
    samples = [_sample(group, plan, numbers, default_model, started, problems) for group in plan.groups]
    if latencies and mapping.latencies:
        told = read_latencies(scanned.body, mapping, [one.group for one in plan.groups], plan.there)
        for group, sample in zip(plan.groups, samples, strict=True):
            found, unread = told[group.group]
            sample.latencies.extend(found)
            sample.problems.extend(unread)
    return samples


def _planned(scanned: Scan, mapping: Mapping) -> tuple[Plan, Numbers]:
    """The plan of the text's layout, and its values. Only texts without any fault share a plan."""
    numbers = None if scanned.cut_off or not scanned.keys else scanned.numbers()
    layout = (mapping.engine, scanned.keys)
    if numbers is not None:
        plan = _plans.get(layout)
        if plan is not None and plan.mapping is mapping:
            _plans.move_to_end(layout)
            return plan, numbers
    text = read_scan(scanned, mapping.wanted)
    plan = plan_of(text, mapping)
    if numbers is not None:
        _plans[layout] = plan
        if len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
        return plan, numbers
    values: list[float | None] = [None] * len(scanned.keys)
    for every in text.series.values():
        for series in every:
            values[series.line] = series.value
    return plan, values


def _sample(
    group: GroupPlan,
    plan: Plan,
    numbers: Numbers,
    default_model: str | None,
    started: float | None,
    shared_problems: list[Problem],
) -> EngineSample:
    values: dict[str, float] = {}
    provenance: dict[str, str] = {}
    if started is not None and plan.start is not None:
        provenance[PROCESS_START] = plan.start.candidate.provenance
    problems = [*shared_problems, *group.problems]
    for recipe in group.recipes:
        try:
            values[recipe.reading] = recipe.value(numbers)
        except Failed as failed:
            problems.append(failed.problem)
        else:
            provenance[recipe.reading] = recipe.candidate.provenance
    lora, problem = group.lora.read(numbers) if group.lora is not None else (None, None)
    if problem is not None:
        problems.append(problem)
    rank, model = group.group
    return EngineSample(
        rank=rank,
        model=model if model is not None else default_model,
        values=values,
        process_started_at_ms=None if started is None else round(started),
        role=group.role,
        lora=lora,
        provenance=provenance,
        problems=problems,
        not_yet=dict(group.not_yet),
    )


def choose(samples: Sequence[EngineSample], served_model: str | None) -> list[EngineSample]:
    """One sample per rank: that of the served model, or the only one there is.

    Where the text speaks only of other models, or of several and none was named, the rank's readings are
    unknown and a problem says so.
    """
    chosen: list[EngineSample] = []
    for rank in sorted({sample.rank for sample in samples}):
        here = [sample for sample in samples if sample.rank == rank]
        if served_model is None:
            fitting = here if len(here) == 1 else []
        else:
            fitting = [sample for sample in here if sample.model in (served_model, None)]
        if fitting:
            chosen.append(fitting[0])
            continue
        names = ", ".join(str(sample.model) for sample in here)
        if served_model is None:
            problem = Problem(
                "ambiguous",
                f"Rank {rank} serves several models ({names}); set served_model to one of them.",
            )
        else:
            problem = Problem(
                "other_model", f"Rank {rank} tells of {names}, not of {served_model}, which it should serve."
            )
        chosen.append(EngineSample(rank, served_model, {}, here[0].process_started_at_ms, problems=[problem]))
    return chosen


def guess_engine(body: bytes) -> str | None:
    """The engine whose mapped metrics the text has most of (its own only, not process_*); None for none."""
    hits: dict[str, int] = {}
    for engine in engines():
        wanted = mapping_of(engine).wanted
        own = frozenset(name for name in wanted if not name.startswith("process_"))
        hits[engine] = len(parse(body, own).series)
    best = max(hits, key=lambda engine: hits[engine])
    return best if hits[best] else None
