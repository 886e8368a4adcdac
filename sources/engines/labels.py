"""What an engine says in labels rather than values: its role, and the LoRA adapters at work. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.endpoints import Role
from sources.engines.groups import NAME, WHOLE, Ownership
from sources.engines.mapping import LoraLabels, Mapping
from sources.problems import Problem
from sources.prometheus_text import Exposition, Labels

MAX_ADAPTERS = 1000


@dataclass(frozen=True, slots=True)
class Adapters:
    """As schemas.telemetry.LoraAdapters."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    slots: int | None


def role_of(text: Exposition, mapping: Mapping, owner: Ownership) -> Role | None:
    """The role that the engine's own series name; None where they name none, or several."""
    if mapping.role_label is None:
        return None
    named = {
        label
        for name in mapping.own_metrics & text.series.keys()
        for series in text.series[name]
        if owner.has(series.labels) and (label := series.labels.by_name.get(mapping.role_label))
    }
    return mapping.role_values.get(named.pop()) if len(named) == 1 else None


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """The series that list adapters: the line of each, and what it lists (None: names that are none)."""

    metric: str
    series: tuple[tuple[int, Adapters | None], ...]

    def read(self, numbers: Sequence[float | None]) -> tuple[Adapters | None, Problem | None]:
        """The adapters of the newest series: its value is the time at which it held."""
        told = [
            (number, adapters)
            for line, adapters in self.series
            if (number := numbers[line]) is not None and math.isfinite(number)
        ]
        if not told:
            return None, None
        adapters = max(told, key=lambda one: one[0])[1]
        if adapters is not None:
            return adapters, None
        sentence = f"LoRA adapters are unknown: {self.metric} lists names that are none, or too many."
        return None, Problem("unparseable", sentence, metric=self.metric)


def lora_plan(text: Exposition, mapping: Mapping, owner: Ownership) -> LoraPlan | None:
    """Where this rank's adapters are told; None where they are not."""
    told = mapping.lora
    if told is None:
        return None
    series = tuple(
        (one.line, _adapters(one.labels, told))
        for one in text.series.get(told.metric, ())
        if owner.has(one.labels, shared=True)
    )
    return LoraPlan(told.metric, series) if series else None


def _adapters(labels: Labels, told: LoraLabels) -> Adapters | None:
    running = _names(labels.by_name.get(told.running, ""))
    waiting = _names(labels.by_name.get(told.waiting, ""))
    if running is None or waiting is None:
        return None
    slots = labels.by_name.get(told.slots, "") if told.slots else ""
    return Adapters(running, waiting, int(slots) if WHOLE.fullmatch(slots) and len(slots) < 7 else None)


def _names(listed: str) -> tuple[str, ...] | None:
    names = tuple(sorted({name.strip() for name in listed.split(",") if name.strip()}))
    fitting = len(names) <= MAX_ADAPTERS and all(NAME.fullmatch(name) for name in names)
    return names if fitting else None
