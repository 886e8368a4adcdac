"""Closing what nobody else will: a decision whose router died ends as ``lost``, so that nothing stays open.

A decision opens an entry, its outcome closes it; the two come on different topics in any order, so an outcome
that is there first leaves a mark. An entry is lost once its deadline plus a horizon has passed, or its router
is known to be dead: a newer boot of the same router, or a heartbeat that has been silent too long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from schemas.outcomes import Outcome

Ending = Literal["deadline", "router_restarted", "router_silent"]
REASONS: dict[Ending, str] = {
    "deadline": "No outcome came by the deadline plus the horizon.",
    "router_restarted": "The router has restarted since; what it had in flight is gone.",
    "router_silent": "The router's heartbeat has been silent for too long.",
}


@dataclass(frozen=True, slots=True)
class ClosingTerms:
    """Bounds in milliseconds of the closer's own clock."""

    horizon_ms: float = 30_000.0
    restart_grace_ms: float = 3_000.0
    silent_ms: float = 15_000.0
    mark_kept_ms: float = 120_000.0


class OpenDecision(msgspec.Struct, omit_defaults=True, tag="open"):
    """What must be kept of a dispatched decision to close it. ``producer`` is its record's key."""

    producer: str
    decision_id: str
    intent_id: str
    intent_inferred: bool
    attempt: int
    at_ms: int
    intent_started_at_ms: int
    deadline_at_ms: int
    router: str
    router_boot: str
    tenant: str
    service_class: str
    pool: str
    entry_region: str
    ttft_slo_ms: float
    tpot_slo_ms: float
    work_tokens: float
    residency: str | None = None
    region: str | None = None
    instance: str | None = None
    instance_boot: str | None = None
    predicted_ttft_ms: float | None = None
    predicted_tpot_ms: float | None = None


class Mark(msgspec.Struct, tag="mark"):
    """An outcome that came before its decision."""

    seen_at_ms: int


_COPIED = tuple(name for name in OpenDecision.__struct_fields__ if name != "producer")


def open_decision(decision: Any, producer: str) -> OpenDecision:
    """The entry of a decision (schemas.decisions.Decision or its struct)."""
    return OpenDecision(producer=producer, **{name: getattr(decision, name) for name in _COPIED})


def lost_outcome(entry: OpenDecision, ending: Ending, now_ms: int) -> Outcome:
    """The outcome that closes it: inferred, without any figure that nobody measured."""
    return Outcome(
        **{name: getattr(entry, name) for name in _COPIED if name != "at_ms"},
        cause="lost",
        rule=REASONS[ending],
        inferred=True,
        at_ms=max(now_ms, entry.at_ms),
        started_at_ms=entry.at_ms,
        within_slo=False,
    )


@dataclass(slots=True)
class _Heard:
    boot: str
    boot_started_at_ms: int
    stamp: tuple[int, int]
    boot_since_ms: float
    heard_ms: float


class RouterWatch:
    """When each router was last heard of, by the watcher's own clock: no clocks are compared.

    A watcher that starts, or whose reader was cut off, gives every router the full time again.
    """

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def observe(self, rows: Iterable[Any], now_ms: float, *, reading: bool = True) -> None:
        """Take the router rows as they are now. ``reading`` is False while the rows can't be followed."""
        for row in rows:
            stamp = (row.epoch, row.version)
            heard = self._heard.get(row.router)
            if heard is None or heard.boot != row.boot:
                self._heard[row.router] = _Heard(row.boot, row.boot_started_at_ms, stamp, now_ms, now_ms)
            elif heard.stamp != stamp or not reading:
                heard.stamp, heard.heard_ms = stamp, now_ms

    def ending_of(self, entry: OpenDecision, terms: ClosingTerms, now_ms: float) -> Ending | None:
        """Why this decision is lost by now, or None while it may still end by itself."""
        if now_ms > entry.deadline_at_ms + terms.horizon_ms:
            return "deadline"
        heard = self._heard.get(entry.router)
        if heard is None:
            return None
        if heard.boot != entry.router_boot:
            # An older boot's row may still be all that is known: then this decision's boot is the newer one.
            newer = heard.boot_started_at_ms > entry.at_ms
            return (
                "router_restarted"
                if newer and now_ms - heard.boot_since_ms > terms.restart_grace_ms
                else None
            )
        silent = now_ms - heard.heard_ms > terms.silent_ms and now_ms - entry.at_ms > terms.silent_ms
        return "router_silent" if silent else None


class Ledger:
    """The open decisions and marks of the partitions that one closer owns.

    ``changed`` holds the ids whose entry differs from what was last stored; the shell stores and clears it.
    """

    def __init__(self) -> None:
        self.open: dict[str, OpenDecision] = {}
        self.marks: dict[str, Mark] = {}
        self.changed: set[str] = set()

    def decided(self, entry: OpenDecision) -> None:
        """A decision was read; its outcome may have been there already."""
        if self.marks.pop(entry.decision_id, None) is None:
            self.open[entry.decision_id] = entry
        self.changed.add(entry.decision_id)

    def ended(self, decision_id: str, now_ms: int) -> None:
        """An outcome was read."""
        if self.open.pop(decision_id, None) is None:
            self.marks[decision_id] = Mark(now_ms)
        self.changed.add(decision_id)

    def forget_marks(self, terms: ClosingTerms, now_ms: int) -> None:
        """Drop marks whose decision never came; only while both topics are read up to their ends."""
        for decision_id, mark in list(self.marks.items()):
            if now_ms - mark.seen_at_ms > terms.mark_kept_ms:
                del self.marks[decision_id]
                self.changed.add(decision_id)

    def lost(self, watch: RouterWatch, terms: ClosingTerms, now_ms: int) -> list[tuple[OpenDecision, Ending]]:
        """What is to be closed now, oldest first."""
        found = [(e, ending) for e in self.open.values() if (ending := watch.ending_of(e, terms, now_ms))]
        return sorted(found, key=lambda item: item[0].at_ms)
