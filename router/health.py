"""How a router is: ready or not, normal, degraded or stopping, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

Mode = Literal["normal", "degraded", "stopping"]


class TablesFeed(Protocol):
    """What is asked of transport.table_reader.TableReader."""

    @property
    def caught_up(self) -> bool: ...

    @property
    def silent_ms(self) -> float: ...


class Health:
    """Reads the state of its parts when asked; ``stopping`` is set once."""

    def __init__(self, feed: TablesFeed, *, silent_after_ms: float, log_degraded: Callable[[], bool]) -> None:
        self._feed = feed
        self._silent_after_ms = silent_after_ms
        self._log_degraded = log_degraded
        self.stopping = False

    @property
    def silent(self) -> bool:
        """True where the tables have stopped coming: last good rows are all there is."""
        return self._feed.silent_ms > self._silent_after_ms

    @property
    def ready(self) -> bool:
        """Whether new requests should come here."""
        return self._feed.caught_up and not self.stopping

    @property
    def mode(self) -> Mode:
        """In one word."""
        if self.stopping:
            return "stopping"
        return "degraded" if self.reasons() else "normal"

    def reasons(self) -> list[str]:
        """Why it is not normal; empty where it is."""
        found = []
        if self.stopping:
            found.append("The router is stopping; requests in flight are being finished.")
        if not self._feed.caught_up:
            found.append("The tables have not been read to their end yet.")
        if self.silent:
            found.append(
                f"The broker has not answered for {self._feed.silent_ms / 1000.0:.0f} s; "
                "the last good tables and leases are in use."
            )
        if self._log_degraded():
            found.append("Decisions are not acknowledged in time, so answers don't wait for them.")
        return found
