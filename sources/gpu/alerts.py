"""Alerts of one host's GPUs. Pure: ``now_ms`` is an argument, rows come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from schemas.operations import AlertRow

HEARTBEAT_MS = 60_000
VALID_FOR_MS = 180_000.0
Severity = Literal["info", "warning", "critical"]


@dataclass(slots=True)
class _Alert:
    severity: Severity
    summary: str
    since_ms: int
    told_at_ms: int


@dataclass(slots=True)
class GpuAlerts:
    """What fires now, by subject: a GPU's UUID, ``<UUID>/xid``, or ``nvml`` for the host as a whole.

    The first time that all is well with a subject is told too: an agent that ran before may have left an
    alert firing. Rows come without stamps: who writes them gives epoch and version.
    """

    host: str
    _firing: dict[str, _Alert] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def fire(self, subject: str, severity: Severity, summary: str, now_ms: int) -> list[AlertRow]:
        """Something is wrong; a row where that is news or a heartbeat is due."""
        self._known.add(subject)
        alert = self._firing.get(subject)
        if alert is None:
            alert = self._firing[subject] = _Alert(severity, "", now_ms, 0)
        news = (alert.severity, alert.summary) != (severity, summary)
        if not news and now_ms - alert.told_at_ms < HEARTBEAT_MS:
            return []
        alert.severity, alert.summary, alert.told_at_ms = severity, summary, now_ms
        return [self._row(subject, alert, "firing", now_ms)]

    def resolve(self, subject: str, summary: str, now_ms: int) -> list[AlertRow]:
        """All is well; a row where that is news."""
        alert = self._firing.pop(subject, None)
        if alert is None and subject in self._known:
            return []
        self._known.add(subject)
        over = _Alert("info", summary, now_ms, now_ms)
        if alert is not None:
            over.severity, over.since_ms = alert.severity, alert.since_ms
        return [self._row(subject, over, "resolved", now_ms)]

    @property
    def firing(self) -> dict[str, str]:
        """The summaries of what fires, by subject."""
        return {subject: alert.summary for subject, alert in sorted(self._firing.items())}

    def _row(
        self, subject: str, alert: _Alert, state: Literal["firing", "resolved"], now_ms: int
    ) -> AlertRow:
        return AlertRow(
            as_of_ms=now_ms,
            valid_for_ms=VALID_FOR_MS,
            epoch=0,
            version=0,
            alert_id=f"gpu/{self.host}/{subject}"[:200],
            severity=alert.severity,
            state=state,
            since_ms=alert.since_ms,
            subject=self.host,
            summary=f"{self.host}: {alert.summary}"[:500],
        )
