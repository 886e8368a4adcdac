"""Alerts about instances that say what can't be true."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.operations import AlertRow

VALID_MS = 30_000.0
AGAIN_MS = 10_000
"""A firing alert is written again so often: one whose writer is gone ages to unknown."""


@dataclass(slots=True)
class _Firing:
    since_ms: int
    told_at_ms: int
    summary: str


@dataclass(slots=True)
class Quarantines:
    """The alerts of one partition's owner; their epoch is when it took over."""

    epoch_ms: int = 0
    version: int = 0
    _firing: dict[str, _Firing] = field(default_factory=dict)

    def note(self, instance: str, said: tuple[int, str] | None, now_ms: int) -> AlertRow | None:
        """Take what an instance is in quarantine for (None: it is not); the row to write, if any."""
        held = self._firing.get(instance)
        if said is None:
            if held is None:
                return None
            del self._firing[instance]
            return self._row(instance, "resolved", held.since_ms, held.summary, now_ms)
        if held is None:
            held = self._firing[instance] = _Firing(said[0], 0, "")
        if held.summary == said[1] and now_ms - held.told_at_ms < AGAIN_MS:
            return None
        held.told_at_ms, held.summary = now_ms, said[1]
        return self._row(instance, "firing", held.since_ms, said[1], now_ms)

    def _row(self, instance: str, state: str, since_ms: int, summary: str, now_ms: int) -> AlertRow:
        self.epoch_ms = self.epoch_ms or now_ms
        self.version += 1
        text = f"{instance} reports what can't be true: {summary} Its telemetry is not used meanwhile."
        return AlertRow(
            as_of_ms=now_ms,
            valid_for_ms=VALID_MS,
            epoch=self.epoch_ms,
            version=self.version,
            alert_id=f"quarantine.{instance}"[:200],
            severity="warning",
            state="firing" if state == "firing" else "resolved",
            since_ms=since_ms,
            subject=instance,
            summary=text[:500],
        )
