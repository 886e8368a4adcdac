"""Whose is a series: which engine rank and model does it speak of, and does it speak of this one."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from sources.engines.mapping import Mapping
from sources.problems import Problem
from sources.prometheus_text import Exposition, Labels, Series

MAX_RANK = 4096
WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9._:@/+\-]{1,200}", re.ASCII)

Group = tuple[int, str | None]
"""An engine rank and the model that its metrics name (None where they name none)."""


class _Bad:
    """A label that is there but can't be what it should be."""


_BAD = _Bad()


def rank_of(labels: Labels, mapping: Mapping) -> int | _Bad | None:
    """The rank that these labels name, None where they name none."""
    label = labels.by_name.get(mapping.rank_label) if mapping.rank_label else None
    if label is None:
        return None
    return int(label) if WHOLE.fullmatch(label) and int(label) <= MAX_RANK else _BAD


def model_of(labels: Labels, mapping: Mapping) -> str | _Bad | None:
    """The model that these labels name, None where they name none."""
    label = labels.by_name.get(mapping.model_label) if mapping.model_label else None
    if label is None:
        return None
    return label if NAME.fullmatch(label) else _BAD


def groups_of(text: Exposition, mapping: Mapping) -> tuple[list[Group], list[Problem]]:
    """All (rank, model) that the text names; (0, None) where it names none."""
    ranks: set[int] = set()
    found: set[Group] = set()
    problems: dict[str, Problem] = {}
    for name in mapping.own_metrics & text.series.keys():
        for series in text.series[name]:
            rank, model = rank_of(series.labels, mapping), model_of(series.labels, mapping)
            if rank is _BAD or model is _BAD:
                sentence = f"{name} has a series whose rank or model label is none: {shown(series)}."
                problems[name] = Problem("ambiguous", sentence, metric=name)
                continue
            if isinstance(rank, int):
                ranks.add(rank)
            if isinstance(model, str):
                found.add((rank if isinstance(rank, int) else 0, model))
    if not found:
        found = {(rank, None) for rank in ranks or {0}}
    return sorted(found, key=lambda group: (group[0], group[1] or "")), list(problems.values())


@dataclass(frozen=True, slots=True)
class Ownership:
    """Decides whether series are one group's. One that names no rank or model is where there is no other."""

    mapping: Mapping
    group: Group | None
    only_rank: bool
    only_model: bool

    @classmethod
    def of(cls, mapping: Mapping, group: Group | None, groups: Sequence[Group]) -> Ownership:
        """For this group among all of them; None: any series."""
        if group is None:
            return cls(mapping, None, True, True)
        only_rank = len({rank for rank, _ in groups}) == 1
        only_model = sum(1 for rank, _ in groups if rank == group[0]) == 1
        return cls(mapping, group, only_rank, only_model)

    def has(self, labels: Labels, *, shared: bool = False) -> bool:
        """Is a series of these labels this group's? ``shared``: it holds for all models of its rank."""
        if self.group is None:
            return True
        rank, model = rank_of(labels, self.mapping), model_of(labels, self.mapping)
        rank_fits = self.only_rank if rank is None else rank == self.group[0]
        model_fits = (shared or self.only_model) if model is None else model == self.group[1]
        return rank_fits and model_fits


def excuse(there: Container[str], mapping: Mapping, reading: str) -> str | None:
    """Why this reading may rightly be absent where these metrics are there; None where it is a problem."""
    late = mapping.late.get(reading)
    if late is None or (late.unless is not None and late.unless in there):
        return None
    return late.why


def without_copies(series: list[Series], lowest: Iterable[str]) -> list[Series]:
    """Of series that differ in the labels ``lowest``, those with the lowest values of them."""
    names = tuple(lowest)
    if not names or len(series) < 2:
        return series

    def place(one: Series) -> tuple[tuple[int, str], ...]:
        values = (one.labels.by_name.get(name, "") for name in names)
        return tuple((len(value), value) for value in values)

    first = min(map(place, series))
    return [one for one in series if place(one) == first]


def shown(series: Series) -> str:
    """The first labels of a series, for a sentence."""
    return str(dict(list(series.labels.by_name.items())[:4]))[:160]
