"""Knobs of a policy: what may be tuned, within which range, and the table of all policies of one kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import exp, isfinite, log
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")
Params = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Knob:
    """A figure that the tuner may set between ``low`` and ``high`` (both included)."""

    name: str
    default: float
    low: float
    high: float
    log_scale: bool = False
    whole: bool = False

    def draw(self, rng: Random) -> float:
        """A value of the range; even on a log scale where the knob says so."""
        if self.log_scale:
            value = exp(rng.uniform(log(self.low), log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return float(round(value)) if self.whole else float(f"{value:.4g}")

    def checked(self, value: float) -> float:
        """The value; ValueError where it is out of range or no number."""
        if not isfinite(value) or not self.low <= value <= self.high:
            raise ValueError(f"{self.name} must lie in {self.low:g} to {self.high:g}, not {value:g}.")
        if self.whole and value != int(value):
            raise ValueError(f"{self.name} must be a whole number, not {value:g}.")
        return float(value)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A policy that can be named in an experiment. ``make(**params)`` gives the policy of one router.

    ``source`` says whose rule it is; ``needs_prefix``: it asks for prefix matches.
    """

    name: str
    title: str
    source: str
    make: Callable[..., T]
    knobs: tuple[Knob, ...] = ()
    needs_prefix: bool = False

    def params(self, given: Params) -> dict[str, float]:
        """All knobs, the given ones checked, the others by default. ValueError for an unknown one."""
        known = {knob.name: knob for knob in self.knobs}
        for name in given:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"The policy {self.name!r} has no knob {name!r}; {has}.")
        return {name: knob.checked(given.get(name, knob.default)) for name, knob in known.items()}

    def factory(self, given: Params) -> Callable[[int], T]:
        """Makes the policy of each router. ValueError for impossible parameters."""
        params = self.params(given)
        return lambda router: self.make(**params)


def table(*entries: Entry[T]) -> dict[str, Entry[T]]:
    """Entries by name."""
    return {entry.name: entry for entry in entries}


def named(entries: Mapping[str, Entry[T]], kind: str, name: str) -> Entry[T]:
    """The entry of this name; ValueError that names the known ones."""
    try:
        return entries[name]
    except KeyError:
        near = get_close_matches(name, entries, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"There is no {kind} policy {name!r}.{hint} Known: {', '.join(sorted(entries))}."
        ) from None
