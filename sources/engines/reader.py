"""From an engine's metrics text to typed readings, by a mapping. Pure: no clock, no I/O.

What is missing, of another type, not finite, out of bounds, twice there or not clearly *this* rank's and
model's is unknown, with a problem that says so. It is never 0 and never a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from schemas.readings import UNKNOWN, EngineCounters, EngineGauges, Reading
from sources.engines.mapping import BOUNDS, PROCESS_START, Candidate, Mapping, engines, mapping_of
from sources.problems import Problem, ProblemKind
from sources.prometheus_text import Exposition, Series, parse

MAX_RANK = 4096
_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_MODEL = re.compile(r"[A-Za-z0-9._:@/+\-]{1,200}", re.ASCII)

Group = tuple[int, str | None]
"""An engine rank and the model that its metrics name (None where they name none)."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What one scrape says of one engine rank and model.

    ``provenance`` names the metric of each known reading; ``problems`` say why others are unknown.
    """

    rank: int
    model: str | None
    gauges: EngineGauges
    counters: EngineCounters
    process_started_at_ms: int | None
    provenance: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def known_counters(self) -> dict[str, float]:
        """Counters that have a value."""
        return {name: one.value for name, one in self.counters if one.value is not None}


class _Failed(Exception):  # noqa: N818 - a reading that can't be made
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.sentence)
        self.problem = problem


def read_engine(body: bytes, mapping: Mapping, *, default_model: str | None = None) -> list[EngineSample]:
    """The samples in a metrics text, by rank and model; at least one, all unknown if nothing is known.

    ``default_model`` names the model where the engine's metrics don't. Raises sources.problems.Unreadable
    where the text is no exposition at all.
    """
    text = parse(body, mapping.wanted)
    problems = [problem for problem in text.problems if problem.metric is None]
    groups, strays = _groups(text, mapping)
    problems += strays
    started, start_problem = _fill(text, mapping, PROCESS_START, mapping.process_started_at_ms, None, groups)
    if start_problem is not None and mapping.process_started_at_ms:
        problems.append(start_problem)
    return [_sample(text, mapping, group, groups, default_model, started, problems) for group in groups]


def _sample(
    text: Exposition,
    mapping: Mapping,
    group: Group,
    groups: Sequence[Group],
    default_model: str | None,
    started: tuple[float, str] | None,
    shared_problems: list[Problem],
) -> EngineSample:
    provenance: dict[str, str] = {} if started is None else {PROCESS_START: started[1]}
    problems = list(shared_problems)

    def readings(candidates_of: dict[str, list[Candidate]]) -> dict[str, Reading]:
        filled: dict[str, Reading] = {}
        for reading, candidates in candidates_of.items():
            found, problem = _fill(text, mapping, reading, candidates, group, groups)
            if found is None:
                filled[reading] = UNKNOWN
            else:
                filled[reading] = Reading(value=found[0], quality="fresh", age_ms=0.0)
                provenance[reading] = found[1]
            if problem is not None:
                problems.append(problem)
        return filled

    return EngineSample(
        rank=group[0],
        model=group[1] if group[1] is not None else default_model,
        gauges=EngineGauges(**readings(mapping.gauges)),
        counters=EngineCounters(**readings(mapping.counters)),
        process_started_at_ms=None if started is None else round(started[0]),
        provenance=provenance,
        problems=problems,
    )


def _groups(text: Exposition, mapping: Mapping) -> tuple[list[Group], list[Problem]]:
    """All (rank, model) that the text names; (0, None) where it names none."""
    ranks: set[int] = set()
    found: set[Group] = set()
    problems: dict[str, Problem] = {}
    for name in mapping.own_metrics & text.series.keys():
        for series in text.series[name]:
            rank, model = _rank_of(series, mapping), _model_of(series, mapping)
            if rank is _BAD or model is _BAD:
                sentence = f"{name} has a series whose rank or model label is none: {_shown(series)}."
                problems[name] = Problem("ambiguous", sentence, metric=name)
                continue
            if isinstance(rank, int):
                ranks.add(rank)
            if isinstance(model, str):
                found.add((rank if isinstance(rank, int) else 0, model))
    if not found:
        found = {(rank, None) for rank in ranks or {0}}
    return sorted(found, key=lambda group: (group[0], group[1] or "")), list(problems.values())


class _Bad:
    """A label that is there but can't be what it should be."""


_BAD = _Bad()


def _rank_of(series: Series, mapping: Mapping) -> int | _Bad | None:
    label = series.labels.by_name.get(mapping.rank_label) if mapping.rank_label else None
    if label is None:
        return None
    return int(label) if _WHOLE.fullmatch(label) and int(label) <= MAX_RANK else _BAD


def _model_of(series: Series, mapping: Mapping) -> str | _Bad | None:
    label = series.labels.by_name.get(mapping.model_label) if mapping.model_label else None
    if label is None:
        return None
    return label if _MODEL.fullmatch(label) else _BAD


def _shown(series: Series) -> str:
    return str(dict(list(series.labels.by_name.items())[:4]))[:160]


def _fill(
    text: Exposition,
    mapping: Mapping,
    reading: str,
    candidates: Sequence[Candidate],
    group: Group | None,
    groups: Sequence[Group],
) -> tuple[tuple[float, str] | None, Problem | None]:
    """The value of a reading and the metric it came from, or why there is none."""
    try:
        for one in candidates:
            if not any(name in text.series or name in text.broken for name in one.metrics):
                continue
            value = _value(text, mapping, reading, one, group, groups)
            if value is not None:
                return (_bounded(reading, one, value), one.provenance), None
    except _Failed as failed:
        return None, failed.problem
    if not candidates:
        return None, None
    return None, _missing(text, reading, candidates, group)


def _missing(text: Exposition, reading: str, candidates: Iterable[Candidate], group: Group | None) -> Problem:
    names = list(dict.fromkeys(name for one in candidates for name in one.metrics))
    there = [name for name in names if name in text.series]
    if there:
        whose = "" if group is None else f" for rank {group[0]}" + (f" and {group[1]}" if group[1] else "")
        sentence = f"{reading} is unknown: {', '.join(there)} is there, but has no such value{whose}."
    else:
        sentence = f"{reading} is unknown: the text has no {' and no '.join(names)}."
    return Problem("missing", sentence, reading, names[0] if names else None)


def _value(
    text: Exposition,
    mapping: Mapping,
    reading: str,
    one: Candidate,
    group: Group | None,
    groups: Sequence[Group],
) -> float | None:
    """The candidate's value; None where the text has nothing of it for this group."""
    total: float | None = None
    for name in one.metrics:
        if broken := text.broken.get(name):
            raise _Failed(replace(broken, reading=reading))
        mine = [s for s in text.series.get(name, ()) if _is_of(s, one, mapping, group, groups)]
        if not mine:
            if len(one.metrics) > 1:
                raise _failed("missing", reading, name, "it is missing from the sum")
            return None
        if (declared := text.type_of(name)) != one.type:
            raise _failed("wrong_type", reading, name, f"its type is {declared}, not {one.type}")
        if any(series.timestamp_ms is not None for series in mine):
            raise _failed("stamped", reading, name, "its samples have time stamps of their own: a copy")
        value = _of_series(reading, name, one, mapping, mine)
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def _is_of(
    series: Series, one: Candidate, mapping: Mapping, group: Group | None, groups: Sequence[Group]
) -> bool:
    """Does this series speak of this rank and model? One that names neither does where there is no other."""
    labels = series.labels.by_name
    if any(labels.get(name) != value for name, value in one.labels.items()):
        return False
    if group is None:
        return True
    rank, model = _rank_of(series, mapping), _model_of(series, mapping)
    if rank is None:
        rank = group[0] if len({other for other, _ in groups}) == 1 else _BAD
    if model is None:
        alone = sum(1 for other, _ in groups if other == group[0]) == 1
        model = group[1] if one.shared or alone else _BAD
    return rank == group[0] and model == group[1]


def _of_series(reading: str, name: str, one: Candidate, mapping: Mapping, mine: list[Series]) -> float | None:
    if one.labels_product:
        if len(mine) > 1:
            raise _failed("ambiguous", reading, name, f"there are {len(mine)} series where one was expected")
        if mine[0].value != 1.0:
            raise _failed("out_of_bounds", reading, name, f"an info metric is 1, this is {mine[0].value:g}")
        return _labels_product(reading, name, one, mine[0])
    for series in mine:
        if not math.isfinite(series.value):
            raise _failed("not_finite", reading, name, f"its value is {series.value}")
    if len(mine) == 1:
        return mine[0].value * one.scale
    if one.pick == "min":
        return min(series.value for series in mine) * one.scale
    rest = {
        frozenset((k, v) for k, v in series.labels.by_name.items() if k not in one.sum_over)
        for series in mine
    }
    if not one.sum_over or len(rest) > 1:
        raise _failed("ambiguous", reading, name, f"there are {len(mine)} series where one was expected")
    return math.fsum(series.value for series in mine) * one.scale


def _labels_product(reading: str, name: str, one: Candidate, series: Series) -> float | None:
    product = 1.0
    for label in one.labels_product:
        text = series.labels.by_name.get(label)
        if text is None or text in ("", "None"):
            return None
        if not _WHOLE.fullmatch(text):
            raise _failed("unparseable", reading, name, f"its label {label} is {text[:40]!r}")
        product *= int(text)
    return product * one.scale


def _bounded(reading: str, one: Candidate, value: float) -> float:
    low, high = BOUNDS[reading]
    if not low <= value <= high:
        raise _failed("out_of_bounds", reading, one.metrics[0], f"{value:g} is not in {low:g} to {high:g}")
    return value


def _failed(kind: ProblemKind, reading: str, metric: str, why: str) -> _Failed:
    return _Failed(Problem(kind, f"{reading} is unknown: {metric}: {why}.", reading, metric))


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
        unread = replace(here[0], model=served_model, gauges=EngineGauges(), counters=EngineCounters())
        chosen.append(replace(unread, problems=[problem]))
    return chosen


def guess_engine(body: bytes) -> str | None:
    """The engine whose mapped metrics the text has most of (its own only, not process_*); None for none."""
    hits: dict[str, int] = {}
    for engine in engines():
        own = frozenset(name for name in mapping_of(engine).wanted if ":" in name)
        hits[engine] = len(parse(body, own).types)
    best = max(hits, key=lambda engine: hits[engine])
    return best if hits[best] else None
