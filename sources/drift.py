"""Drift alerts: one for each reading that an engine's metrics no longer fill as the mapping says. Pure.

A metric that vanished, was renamed or changed its type fires after two scrapes in a row (a page taken in the
middle of a start is no drift) and is resolved by the first scrape that reads it again. While an engine is
away nothing is known, so nothing changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.operations import AlertRow
from sources.problems import Problem

FIRE_AFTER = 2
HEARTBEAT_MS = 60_000
VALID_FOR_MS = 180_000.0
_PREFIX = "engine-drift"


def alert_id(instance: str, reading: str) -> str:
    """The alert of one reading of one instance; the same whichever agent watches it."""
    name = f"{_PREFIX}/{instance}/{reading}"
    if len(name) <= 200:
        return name
    return f"{_PREFIX}/{hashlib.sha256(instance.encode()).hexdigest()[:32]}/{reading}"


def is_drift_alert(row: AlertRow, instance: str) -> bool:
    """Is this row such an alert of this instance? Any object with the row's fields does."""
    return row.alert_id.startswith(f"{_PREFIX}/") and row.subject == instance


@dataclass(slots=True)
class _Firing:
    since_ms: int
    summary: str
    told_at_ms: int


@dataclass(slots=True)
class DriftAlerts:
    """The drift alerts of one instance. Rows come without stamps: who writes them gives epoch and version."""

    instance: str
    _counts: dict[str, int] = field(default_factory=dict)
    _firing: dict[str, _Firing] = field(default_factory=dict)

    @property
    def firing(self) -> tuple[str, ...]:
        """The readings with an alert."""
        return tuple(sorted(self._firing))

    def resume(self, row: AlertRow) -> None:
        """Take over an alert that an agent left firing, so that it can be resolved."""
        reading = row.alert_id.rpartition("/")[2]
        if row.state == "firing":
            self._firing[reading] = _Firing(row.since_ms, row.summary, 0)

    def observe(self, problems: Iterable[Problem], now_ms: int) -> list[AlertRow]:
        """Account for a scrape that the engine answered; the rows to write, changed ones and heartbeats."""
        drifted: dict[str, str] = {}
        for problem in problems:
            if problem.drift:
                drifted.setdefault(problem.reading or problem.metric or problem.kind, problem.sentence)
        rows = [
            self._row(reading, "resolved", now_ms, f"{self.instance}: {reading} has its metric again.")
            for reading in sorted(self._firing.keys() - drifted.keys())
        ]
        self._firing = {reading: one for reading, one in self._firing.items() if reading in drifted}
        self._counts = {reading: self._counts.get(reading, 0) + 1 for reading in drifted}
        for reading, sentence in drifted.items():
            held = self._firing.get(reading)
            summary = f"{self.instance}: {sentence}"[:500]
            if held is None and self._counts[reading] < FIRE_AFTER:
                continue
            if held is None:
                held = self._firing[reading] = _Firing(now_ms, "", 0)
            if held.summary != summary or now_ms - held.told_at_ms >= HEARTBEAT_MS:
                held.summary, held.told_at_ms = summary, now_ms
                rows.append(self._row(reading, "firing", held.since_ms, summary, now_ms))
        return rows

    def forget(self, now_ms: int) -> list[AlertRow]:
        """The engine is no longer watched: nothing of it is drifting any more."""
        rows = [
            self._row(reading, "resolved", now_ms, f"{self.instance} is no longer watched.")
            for reading in self.firing
        ]
        self._firing, self._counts = {}, {}
        return rows

    def _row(
        self, reading: str, state: str, since_ms: int, summary: str, now_ms: int | None = None
    ) -> AlertRow:
        return AlertRow.model_validate(
            {
                "as_of_ms": since_ms if now_ms is None else now_ms,
                "valid_for_ms": VALID_FOR_MS,
                "epoch": 0,
                "version": 0,
                "alert_id": alert_id(self.instance, reading),
                "severity": "warning",
                "state": state,
                "since_ms": since_ms,
                "subject": self.instance,
                "summary": summary,
            }
        )
