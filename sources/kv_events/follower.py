"""One rank's stream from batches to fleet.kv events, under the right boot. Pure: ``now_ms`` is an argument.

The boot comes from the engine's metrics and the stream from its event socket, and after a restart either may
be the first to tell. So whenever a new boot is known, all of what is held is told again under it; and when
the stream restarts first, its news wait for the boot, for a bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from minds.prefix_keys import BlockHasher
from schemas.caches import KvEvent
from sources.boots import Boot
from sources.kv_events.sequence import Forget, Position, Step, Verdict
from sources.kv_events.view import FleetChange, KvCacheView
from sources.kv_events.wire import Batch

BOOT_WAIT_MS = 10_000
"""A stream that restarts without a new boot (an engine core alone may) is told on after this."""
RESTATE_MS = 30 * 60_000
"""All that is held is told again this often: fleet.kv keeps two hours, and caches live longer."""
_BLOCKS_AN_EVENT = 512


class RankFollower:
    """Follows one rank of one instance; every method returns the events to send and whether to ask."""

    def __init__(self, instance: str, pool: str, rank: int, hasher: BlockHasher, *, now_ms: int) -> None:
        self.instance = instance
        self.pool = pool
        self.rank = rank
        self.view = KvCacheView(hasher)
        self.position = Position()
        self._hasher = hasher
        self._boot: Boot | None = None
        self._wait_until_ms: int | None = None
        self._restated_at_ms = now_ms

    @property
    def whole(self) -> bool:
        """Is all of the cache's content known?"""
        return self.position.whole and not self.view.unusable

    def live(self, batch: Batch, boot: Boot | None, now_ms: int) -> tuple[list[KvEvent], int | None]:
        """A batch arrived. ``boot`` is the engine's, None while unknown."""
        return self._decide(lambda: self.position.live(batch), boot, now_ms)

    def replayed(
        self, batches: Sequence[Batch] | None, live: Batch | None, boot: Boot | None, now_ms: int
    ) -> tuple[list[KvEvent], int | None]:
        """A replay gave these batches (None: it gave nothing), asked for because of ``live``."""
        mine = None if batches is None else [one for one in batches if one.rank in (None, self.rank)]
        return self._decide(lambda: self.position.replayed(mine, live), boot, now_ms)

    def tick(self, boot: Boot | None, now_ms: int) -> tuple[list[KvEvent], int | None]:
        """Nothing arrived for a while; ask whether anything was missed."""
        return self._decide(lambda: Verdict(ask_from=self.position.ask_from), boot, now_ms)

    def _decide(
        self, judge: Callable[[], Verdict], boot: Boot | None, now_ms: int
    ) -> tuple[list[KvEvent], int | None]:
        events = self._turn(boot, now_ms)
        verdict = judge()
        for step in verdict.steps:
            events += self._step(step, now_ms)
        return events, verdict.ask_from

    def _turn(self, boot: Boot | None, now_ms: int) -> list[KvEvent]:
        """Account for the boot and the time."""
        if boot is not None and boot != self._boot:
            began_s = self.position.began_ts_s
            # What was heard before this process began is of one before; both times are the engine's clock.
            # (A boot that the agent minted begins late by its clock: a replay then brings back what is lost.)
            if began_s is not None and began_s * 1000 < boot.started_at_ms:
                self.position.forget("boot")
                self.view.clear()
            self._boot, self._wait_until_ms = boot, None
            return [*self._events(FleetChange("cleared"), now_ms), *self._all_held(now_ms)]
        if self._wait_until_ms is not None and now_ms >= self._wait_until_ms:
            self._wait_until_ms = None
            return self._all_held(now_ms)
        if now_ms - self._restated_at_ms >= RESTATE_MS and self._tells:
            return self._all_held(now_ms)
        return []

    def _step(self, step: Step, now_ms: int) -> list[KvEvent]:
        tells = self._tells
        if isinstance(step, Forget):
            changes = self.view.clear()
            if step.why == "restart":
                self._wait_until_ms = now_ms + BOOT_WAIT_MS
        else:
            changes = [change for event in step.events for change in self.view.fold(event)]
        return [event for change in changes for event in self._events(change, now_ms)] if tells else []

    @property
    def _tells(self) -> bool:
        return self._boot is not None and self._wait_until_ms is None

    def _all_held(self, now_ms: int) -> list[KvEvent]:
        self._restated_at_ms = now_ms
        return [
            event
            for medium, names in sorted(self.view.fleet_blocks().items())
            for event in self._events(FleetChange("stored", medium, tuple(sorted(names))), now_ms)
        ]

    def _events(self, change: FleetChange, now_ms: int) -> list[KvEvent]:
        """A change as events, each of a bounded number of blocks."""
        if change.kind == "cleared":
            return [self._event(change, now_ms)]
        parts = range(0, len(change.blocks), _BLOCKS_AN_EVENT)
        return [
            self._event(replace(change, blocks=change.blocks[at : at + _BLOCKS_AN_EVENT]), now_ms)
            for at in parts
        ]

    def _event(self, change: FleetChange, now_ms: int) -> KvEvent:
        if self._boot is None:
            raise RuntimeError("Nothing is told before the boot is known.")
        return KvEvent(
            instance=self.instance,
            boot=self._boot.name,
            rank=self.rank,
            pool=self.pool,
            at_ms=now_ms,
            engine_seq=self.position.last or 0,
            kind=change.kind,
            prefix=self._hasher.key(change.blocks) if change.kind != "cleared" else None,
            medium=change.medium,
        )
