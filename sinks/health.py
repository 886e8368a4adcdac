"""How the sink is: what ``/healthz`` and ``/readyz`` answer."""

from __future__ import annotations

from dataclasses import dataclass

RED_AFTER_MS = 15_000.0
"""A store or broker that fails for longer turns health red."""


@dataclass(slots=True)
class Health:
    """The consumer's state; times are of a monotonic clock in milliseconds."""

    following: bool = False
    stopped: str | None = None
    """Why the consumer stopped for good, as a sentence."""
    failing_since_ms: float | None = None
    failing: str = ""

    def fails(self, reason: str, now_ms: float) -> None:
        """The present step failed and will be tried again."""
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        self.failing = reason

    def works(self) -> None:
        """The present step went through."""
        self.failing_since_ms, self.failing = None, ""

    def trouble(self, now_ms: float) -> str | None:
        """What turns health red now, or None."""
        if self.stopped is not None:
            return self.stopped
        if self.failing_since_ms is not None and now_ms - self.failing_since_ms > RED_AFTER_MS:
            return f"Failing for {(now_ms - self.failing_since_ms) / 1000:.0f} s: {self.failing}"
        return None
