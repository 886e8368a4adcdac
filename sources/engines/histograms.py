"""Prometheus histograms of latencies as totals since the engine's boot, in milliseconds. Pure.

A histogram is believed whole or not at all: one declared type, ascending bounds, counts that never fall from
bucket to bucket, an ``+Inf`` bucket that agrees with ``_count``, a finite sum.

Histograms are most of a page, but between two scrapes only their values change. So a page's layout (names,
types and labels, in order) is worked out once into a plan that says which line fills which bucket; a page of
a known layout then costs one pass of the regex engine and the values.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from schemas.telemetry import LatencyName
from sources.engines.groups import Group, Ownership, excuse
from sources.engines.mapping import Histogram, Mapping
from sources.problems import Problem, ProblemKind
from sources.prometheus_text import VALUE, Labels, any_of, numbers_of, parse_labels

MAX_BOUNDS = 200
MAX_BOUND_MS = 7 * 86_400_000.0
MAX_PLANS = 512
_ONE_VALUE = re.compile(rf"{VALUE}[ \t\r]*")


@dataclass(frozen=True, slots=True)
class Totals:
    """As schemas.telemetry.LatencyTotals, and the metric that it came from."""

    name: LatencyName
    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]
    sum_ms: float
    metric: str


def read_latencies(
    body: str, mapping: Mapping, groups: Sequence[Group], there: Container[str]
) -> dict[Group, tuple[list[Totals], list[Problem]]]:
    """The latencies of each rank and model in these lines, and why others are unknown.

    ``there`` are the other metrics of the text: they tell whether a missing one is excused.
    """
    keys: list[str] = []
    values: list[str] = []
    for name, part, declared, rest in _scanner(_names(mapping)).findall(f"\n{body}\n"):
        if declared:
            keys.append(f"#{declared} {rest.strip()}")
            values.append("0")
        else:
            cut = rest.rfind("}") + 1  # a value has no brace
            keys.append(f"{name}_{part} {rest[:cut]}")
            values.append(rest[cut:])
    plan = _plan_of(mapping, tuple(groups), tuple(keys))
    numbers = _numbers(values)
    found: dict[Group, tuple[list[Totals], list[Problem]]] = {}
    for group, entries in plan.entries.items():
        totals: list[Totals] = []
        problems: list[Problem] = []
        for entry in entries:
            if isinstance(entry, Problem):
                problems.append(entry)
                continue
            try:
                totals.append(entry.read(numbers))
            except _Unusable as unusable:
                problems.append(_problem(entry.name, entry.one, unusable))
        problems += [
            problem
            for problem in plan.missing
            if problem.reading is not None and excuse(there, mapping, problem.reading) is None
        ]
        found[group] = totals, problems
    return found


class _Unusable(Exception):  # noqa: N818 - a histogram that can't be read
    def __init__(self, kind: ProblemKind, why: str) -> None:
        super().__init__(why)
        self.kind: ProblemKind = kind


def _problem(name: str, one: Histogram, unusable: _Unusable) -> Problem:
    sentence = f"{name} is unknown: {one.metric}: {unusable}."
    return Problem(unusable.kind, sentence, name, one.metric)


def _numbers(values: list[str]) -> Sequence[float | None]:
    """The values; None for what is none, or has a time stamp behind it."""
    numbers = numbers_of(values)
    if numbers is not None:
        return numbers
    return [float(value) if _ONE_VALUE.fullmatch(value) else None for value in values]


def _names(mapping: Mapping) -> frozenset[str]:
    return frozenset(one.metric for candidates in mapping.latencies.values() for one in candidates)


@lru_cache(maxsize=64)
def _scanner(names: frozenset[str]) -> re.Pattern[str]:
    """Groups: family, part and the rest of a sample's line, or the family and the rest of a TYPE line."""
    tree = any_of(names)
    sample = rf"({tree})_(bucket|sum|count)(?=[ \t\r\n{{])"
    kind = rf"#[ \t]*TYPE[ \t]+({tree})(?=[ \t])"
    return re.compile(rf"\n[ \t]*(?:{sample}|{kind})([^\n]*)")


# ------------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class _Entry:
    """Which lines (by number) make one latency of one group."""

    name: LatencyName
    one: Histogram
    bounds_ms: tuple[float, ...]
    buckets: tuple[tuple[int, ...], ...]
    """For each bound, and last for +Inf: the lines to add."""
    sums: tuple[int, ...]
    counts: tuple[int, ...]

    def read(self, numbers: Sequence[float | None]) -> Totals:
        """The totals that these values make; raises _Unusable."""
        counts: list[int] = []
        before = 0
        for lines in self.buckets:
            at_most = _whole(_total(numbers, lines))
            if at_most < before:
                raise _Unusable("out_of_bounds", "its buckets contradict each other")
            counts.append(at_most - before)
            before = at_most
        if before != _whole(_total(numbers, self.counts)):
            raise _Unusable("out_of_bounds", "its buckets contradict its count")
        sum_ms = _total(numbers, self.sums) * self.one.ms_per_unit
        if not 0.0 <= sum_ms <= 1e18:
            raise _Unusable("out_of_bounds", "its sum is no time")
        return Totals(self.name, self.bounds_ms, tuple(counts), sum_ms, self.one.metric)


def _total(numbers: Sequence[float | None], lines: tuple[int, ...]) -> float:
    total = 0.0
    for line in lines:
        number = numbers[line]
        if number is None:
            raise _Unusable("unparseable", "one of its lines is not a sample, or has a time stamp of its own")
        total += number
    if not math.isfinite(total):
        raise _Unusable("not_finite", f"one of its values is {total}")
    return total


def _whole(value: float) -> int:
    whole = int(value)
    if whole != value or not 0 <= whole <= 2**53:
        raise _Unusable("out_of_bounds", f"{value:g} is no count")
    return whole


@dataclass(slots=True)
class _Plan:
    mapping: Mapping
    entries: dict[Group, list[_Entry | Problem]] = field(default_factory=dict)
    missing: list[Problem] = field(default_factory=list)


_Layout = tuple[str, tuple[Group, ...], tuple[str, ...]]
_plans: OrderedDict[_Layout, _Plan] = OrderedDict()


def _plan_of(mapping: Mapping, groups: tuple[Group, ...], keys: tuple[str, ...]) -> _Plan:
    layout = (mapping.engine, groups, keys)
    plan = _plans.get(layout)
    if plan is None or plan.mapping is not mapping:
        plan = _plans[layout] = _planned(mapping, groups, keys)
    _plans.move_to_end(layout)
    if len(_plans) > MAX_PLANS:
        _plans.popitem(last=False)
    return plan


@dataclass(slots=True)
class _Family:
    """The lines of one histogram: number and labels (None: they can't be read) of each part."""

    types: set[str] = field(default_factory=set)
    parts: dict[str, list[tuple[int, Labels | None]]] = field(
        default_factory=lambda: {"bucket": [], "sum": [], "count": []}
    )

    @property
    def there(self) -> bool:
        return any(self.parts.values())


def _planned(mapping: Mapping, groups: tuple[Group, ...], keys: tuple[str, ...]) -> _Plan:
    families = {name: _Family() for name in _names(mapping)}
    for line, key in enumerate(keys):
        name, _, rest = key.partition(" ")
        if name.startswith("#"):
            families[name[1:]].types.add(rest)
            continue
        family, _, part = name.rpartition("_")
        rest = rest.strip(" \t")
        families[family].parts[part].append((line, parse_labels(rest[1:-1] if rest else "")))
    plan = _Plan(mapping, {group: [] for group in groups})
    for latency, candidates in mapping.latencies.items():
        chosen = next((one for one in candidates if families[one.metric].there), None)
        if chosen is None:
            names = " and no ".join(one.metric for one in candidates)
            sentence = f"{latency} is unknown: the text has no {names}."
            plan.missing.append(Problem("missing", sentence, latency, candidates[0].metric))
            continue
        for group in groups:
            try:
                owner = Ownership.of(mapping, group, groups)
                entry = _entry(latency, chosen, families[chosen.metric], owner)
            except _Unusable as unusable:
                plan.entries[group].append(_problem(latency, chosen, unusable))
                continue
            if entry is not None:
                plan.entries[group].append(entry)
    return plan


def _entry(name: LatencyName, one: Histogram, family: _Family, owner: Ownership) -> _Entry | None:
    """None where the family is there, but speaks of other ranks and models only."""
    mine = {part: _mine(lines, one, owner) for part, lines in family.parts.items()}
    if not any(mine.values()):
        return None
    if family.types != {"histogram"}:
        told = " and ".join(sorted(family.types)) or "None"
        raise _Unusable("wrong_type", f"its type is {told}, not histogram")
    histograms: dict[frozenset[tuple[str, str]], dict[float, int]] = {}
    for line, labels in mine["bucket"]:
        bounds = histograms.setdefault(_rest(labels), {})
        bound = _bound(labels)
        if bound in bounds:
            raise _Unusable("duplicate", "it has the same bucket twice")
        bounds[bound] = line
    sums = {_rest(labels): line for line, labels in mine["sum"]}
    counts = {_rest(labels): line for line, labels in mine["count"]}
    if len(sums) != len(mine["sum"]) or len(counts) != len(mine["count"]):
        raise _Unusable("duplicate", "it has the same series twice")
    if not histograms.keys() == sums.keys() == counts.keys():
        raise _Unusable("unparseable", "it lacks buckets, a sum or a count")
    unlike = {frozenset(pair for pair in rest if pair[0] not in one.sum_over) for rest in histograms}
    if len(unlike) > 1 or (len(histograms) > 1 and not one.sum_over):
        raise _Unusable("ambiguous", f"there are {len(histograms)} histograms where one was expected")
    return _added(name, one, list(histograms.values()), tuple(sums.values()), tuple(counts.values()))


def _added(
    name: LatencyName,
    one: Histogram,
    histograms: list[dict[float, int]],
    sums: tuple[int, ...],
    counts: tuple[int, ...],
) -> _Entry:
    """Several histograms are added bucket by bucket, only where they have the same bounds."""
    bounds = sorted(histograms[0])
    if any(sorted(other) != bounds for other in histograms):
        raise _Unusable("ambiguous", "its parts have different buckets")
    if bounds[-1] != math.inf:
        raise _Unusable("unparseable", "it has no bucket +Inf")
    bounds_ms = tuple(bound * one.ms_per_unit for bound in bounds[:-1])
    if len(bounds_ms) > MAX_BOUNDS or any(not 0.0 <= bound <= MAX_BOUND_MS for bound in bounds_ms):
        raise _Unusable("out_of_bounds", "its bounds are no times, or too many")
    buckets = tuple(tuple(other[bound] for other in histograms) for bound in bounds)
    return _Entry(name, one, bounds_ms, buckets, sums, counts)


def _mine(
    lines: list[tuple[int, Labels | None]], one: Histogram, owner: Ownership
) -> list[tuple[int, Labels]]:
    mine: list[tuple[int, Labels]] = []
    for line, labels in lines:
        if labels is None:
            raise _Unusable("unparseable", "the labels of one of its lines can't be read")
        if any(labels.by_name.get(label) != value for label, value in one.labels.items()):
            continue
        if owner.has(labels):
            mine.append((line, labels))
    if one.lowest and mine:
        first = min(_place(labels, one.lowest) for _, labels in mine)
        mine = [(line, labels) for line, labels in mine if _place(labels, one.lowest) == first]
    return mine


def _place(labels: Labels, names: Sequence[str]) -> tuple[tuple[int, str], ...]:
    values = (labels.by_name.get(name, "") for name in names)
    return tuple((len(value), value) for value in values)


def _rest(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in labels.by_name.items() if pair[0] != "le")


def _bound(labels: Labels) -> float:
    text = labels.by_name.get("le", "")
    if not _ONE_VALUE.fullmatch(text) or math.isnan(bound := float(text)):
        raise _Unusable("unparseable", "a bucket has no bound")
    return bound
