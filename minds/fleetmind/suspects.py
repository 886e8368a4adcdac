"""Instances that just refused or dropped a connection of ours: left out for a moment, then tried again.

This is the router's own evidence and only bridges the time until the registry knows better.
"""

from __future__ import annotations

FIRST_PAUSE_MS = 500.0
LONGEST_PAUSE_MS = 10_000.0


class Suspects:
    """Pauses by (instance, boot), doubled with each failure in a row and ended by a success."""

    def __init__(self) -> None:
        self._paused: dict[tuple[str, str], tuple[float, float]] = {}

    def failed(self, instance: str, boot: str, now_ms: float) -> None:
        """A connection was refused, reset before the first byte, or answered 503."""
        _, pause_ms = self._paused.get((instance, boot), (0.0, FIRST_PAUSE_MS / 2))
        pause_ms = min(LONGEST_PAUSE_MS, pause_ms * 2)
        self._paused[instance, boot] = (now_ms + pause_ms, pause_ms)

    def worked(self, instance: str, boot: str) -> None:
        """It answered."""
        self._paused.pop((instance, boot), None)

    def forget(self, instance: str) -> None:
        """It left the registry."""
        for key in [key for key in self._paused if key[0] == instance]:
            del self._paused[key]

    def paused(self, instance: str, boot: str, now_ms: float) -> bool:
        """True while it should be left out, if there is any other."""
        until = self._paused.get((instance, boot))
        return until is not None and now_ms < until[0]
