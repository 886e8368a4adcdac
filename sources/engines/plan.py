"""How a text of one layout is read: which line fills which reading of which rank and model. Pure.

All that can be told from names, types and labels is decided here, once a layout; what depends on values
(finite, within bounds) is decided with each scrape, by ``Recipe.value``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from schemas.endpoints import Role
from sources.engines.groups import WHOLE, Group, Ownership, excuse, groups_of, without_copies
from sources.engines.labels import LoraPlan, lora_plan, role_of
from sources.engines.mapping import BOUNDS, PROCESS_START, Candidate, Mapping
from sources.problems import Problem, ProblemKind
from sources.prometheus_text import Exposition, Series

Numbers = Sequence[float | None]
"""The values of a text's wanted lines by their place; None for a line that gives none."""


class Failed(Exception):  # noqa: N818 - a reading that can't be made
    """Why a reading is unknown."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.sentence)
        self.problem = problem


def _failed(kind: ProblemKind, reading: str, metric: str, why: str) -> Failed:
    return Failed(Problem(kind, f"{reading} is unknown: {metric}: {why}.", reading, metric))


@dataclass(frozen=True, slots=True)
class Term:
    """The lines of one metric. ``constant`` is what an info metric's labels say, if its value is 1."""

    metric: str
    lines: tuple[int, ...]
    constant: float | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one reading is made of the values."""

    reading: str
    candidate: Candidate
    terms: tuple[Term, ...]

    def value(self, numbers: Numbers) -> float:
        """The reading; raises Failed where the values make none."""
        parts = [self._of(term, numbers) for term in self.terms]
        if len(parts) == 1:
            value = parts[0]
        else:
            value = math.prod(parts) if self.candidate.product_of else math.fsum(parts)
        low, high = BOUNDS[self.reading]
        if not low <= value <= high:
            why = f"{value:g} is not in {low:g} to {high:g}"
            raise _failed("out_of_bounds", self.reading, self.terms[0].metric, why)
        return value

    def _of(self, term: Term, numbers: Numbers) -> float:
        values = [number for line in term.lines if (number := numbers[line]) is not None]
        if len(values) < len(term.lines):
            raise _failed("unparseable", self.reading, term.metric, "one of its lines gives no value")
        if term.constant is not None:
            if values[0] != 1.0:
                why = f"an info metric is 1, this is {values[0]:g}"
                raise _failed("out_of_bounds", self.reading, term.metric, why)
            return term.constant
        for value in values:
            if not math.isfinite(value):
                raise _failed("not_finite", self.reading, term.metric, f"its value is {value}")
        if len(values) == 1:
            return values[0] * self.candidate.scale
        total = min(values) if self.candidate.pick == "min" else math.fsum(values)
        return total * self.candidate.scale


@dataclass(slots=True)
class GroupPlan:
    """One rank and model. ``problems`` and ``not_yet`` are those that the layout alone tells."""

    group: Group
    recipes: list[Recipe] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    not_yet: dict[str, str] = field(default_factory=dict)
    role: Role | None = None
    lora: LoraPlan | None = None


@dataclass(slots=True)
class Plan:
    """A whole text."""

    mapping: Mapping
    groups: list[GroupPlan]
    problems: list[Problem]
    start: Recipe | None
    there: frozenset[str]
    """The metrics that are there and can be used."""


def plan_of(text: Exposition, mapping: Mapping) -> Plan:
    """Work out how to read this text (and all of its layout)."""
    problems = [problem for problem in text.problems if problem.metric is None]
    groups, strays = groups_of(text, mapping)
    problems += strays
    anyone = Ownership.of(mapping, None, groups)
    start, problem = _recipe(text, PROCESS_START, mapping.process_started_at_ms, anyone)
    if problem is not None:
        problems.append(problem)
    plans = [_group_plan(text, mapping, group, groups) for group in groups]
    return Plan(mapping, plans, problems, start, frozenset(text.series))


def _group_plan(text: Exposition, mapping: Mapping, group: Group, groups: Sequence[Group]) -> GroupPlan:
    owner = Ownership.of(mapping, group, groups)
    plan = GroupPlan(group, role=role_of(text, mapping, owner), lora=lora_plan(text, mapping, owner))
    for reading, candidates in mapping.readings.items():
        recipe, problem = _recipe(text, reading, candidates, owner)
        if recipe is not None:
            plan.recipes.append(recipe)
        elif problem is not None:
            why = excuse(text.series, mapping, reading) if problem.kind == "missing" else None
            if why is None:
                plan.problems.append(problem)
            else:
                plan.not_yet[reading] = why
    return plan


def _recipe(
    text: Exposition, reading: str, candidates: Sequence[Candidate], owner: Ownership
) -> tuple[Recipe | None, Problem | None]:
    """How to make a reading, or why it can't be made; neither where there is no candidate."""
    try:
        for place, one in enumerate(candidates):
            if not any(name in text.series or name in text.broken for name in one.metrics):
                continue
            terms = _terms(text, reading, one, candidates[place + 1 :], owner)
            if terms is not None:
                return Recipe(reading, one, terms), None
    except Failed as failed:
        return None, failed.problem
    return None, _missing(text, reading, candidates, owner.group) if candidates else None


def _missing(text: Exposition, reading: str, candidates: Iterable[Candidate], group: Group | None) -> Problem:
    names = list(dict.fromkeys(name for one in candidates for name in one.metrics))
    there = [name for name in names if name in text.series]
    if there:
        whose = "" if group is None else f" for rank {group[0]}" + (f" and {group[1]}" if group[1] else "")
        sentence = f"{reading} is unknown: {', '.join(there)} is there, but has no such value{whose}."
    else:
        sentence = f"{reading} is unknown: the text has no {' and no '.join(names)}."
    return Problem("missing", sentence, reading, names[0] if names else None)


def _terms(
    text: Exposition, reading: str, one: Candidate, later: Sequence[Candidate], owner: Ownership
) -> tuple[Term, ...] | None:
    """The candidate's terms; None where the text has nothing of it for this group."""
    if one.metric is not None:
        term = _term(text, reading, one, one.metric, one.labels, owner)
        return None if term is None else (term,)
    if one.product_of:
        factors = [_term(text, reading, one, f.metric, f.labels, owner) for f in one.product_of]
        known = tuple(factor for factor in factors if factor is not None)
        return known if len(known) == len(factors) else None
    parts = [_term(text, reading, one, name, one.labels, owner) for name in one.sum_of]
    found = tuple(part for part in parts if part is not None)
    if len(found) == len(parts):
        return found
    there = {part.metric for part in found}
    if there <= {name for other in later for name in other.metrics}:
        return None
    name = next(name for name in one.sum_of if name not in there)
    raise _failed("missing", reading, name, "it is missing from the sum")


def _term(
    text: Exposition, reading: str, one: Candidate, name: str, labels: dict[str, str], owner: Ownership
) -> Term | None:
    if broken := text.broken.get(name):
        raise Failed(replace(broken, reading=reading))
    mine = [
        series
        for series in text.series.get(name, ())
        if _fits(series.labels.by_name, one, labels) and owner.has(series.labels, shared=one.shared)
    ]
    if not mine:
        return None
    if (declared := text.type_of(name)) != one.type:
        raise _failed("wrong_type", reading, name, f"its type is {declared}, not {one.type}")
    if any(series.timestamp_ms is not None for series in mine):
        raise _failed("stamped", reading, name, "its samples have time stamps of their own: a copy")
    mine = without_copies(mine, one.lowest)
    rest = {
        frozenset((k, v) for k, v in series.labels.by_name.items() if k not in one.sum_over)
        for series in mine
    }
    if len(mine) > 1 and one.pick != "min" and (one.labels_product or not one.sum_over or len(rest) > 1):
        raise _failed("ambiguous", reading, name, f"there are {len(mine)} series where one was expected")
    lines = tuple(series.line for series in mine)
    if not one.labels_product:
        return Term(name, lines)
    product = _labels_product(reading, name, one, mine[0])
    return None if product is None else Term(name, lines, product)


def _fits(labels: dict[str, str], one: Candidate, wanted: dict[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items()) and not any(
        labels.get(name) for name in one.blank
    )


def _labels_product(reading: str, name: str, one: Candidate, series: Series) -> float | None:
    product = 1.0
    for label in one.labels_product:
        text = series.labels.by_name.get(label)
        if text is None or text in ("", "None"):
            return None
        if not WHOLE.fullmatch(text):
            raise _failed("unparseable", reading, name, f"its label {label} is {text[:40]!r}")
        product *= int(text)
    return product * one.scale
