"""A recovery of tables that stands still is begun again.

Faust waits for its changelogs without a limit, and in one of some thirty rebalances on a busy machine none of
their records comes, though all is assigned and the broker answers. To begin again seeks the changelogs to where
the recovery has got to, and resumes their partitions; what is read twice is overwritten by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)

EVERY_S = 1.0
STANDS_STILL_MS = 8_000.0
"""Without one more record of a changelog. Only a pause of the broker's is as long, and then nothing is lost
by asking again."""


class Recovering(Protocol):
    """streams.faust_tables.Ownership."""

    @property
    def recovered(self) -> bool: ...
    @property
    def is_assigned(self) -> bool: ...


class RecoveryWatch:
    """Watches the recovery of one Faust app, whose tables ``followers`` own."""

    def __init__(
        self, app: Any, followers: Sequence[Recovering], clock_ms: Callable[[], float] = monotonic_ms
    ) -> None:
        self._app = app
        self._followers = followers
        self._clock_ms = clock_ms
        self._progress: Any = None
        self._since_ms = 0.0

    async def run(self) -> None:
        """Look each second until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> bool:
        """Begin the recovery again if it stands still; returns whether it did."""
        now_ms = self._clock_ms()
        recovery = self._app.tables.recovery
        recovering = any(each.is_assigned and not each.recovered for each in self._followers)
        progress = None
        if recovering:
            progress = (self._app.consumer_generation_id, sum(recovery.active_offsets.values()))
        if progress is None or progress != self._progress:
            self._progress, self._since_ms = progress, now_ms
            return False
        if now_ms - self._since_ms < STANDS_STILL_MS:
            return False
        log.warning("recovery_begun_again", after_s=round((now_ms - self._since_ms) / 1000))
        self._since_ms = now_ms
        recovery.signal_recovery_start.set()
        return True
