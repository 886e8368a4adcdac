"""The rows of one owned partition as they were last made, and when each must be looked at again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minds.capacity.registers import READING_VALID_MS
from minds.capacity.rows import QUIET_VALID_MS, SILENT_LEAVES_MS, Members, members_of
from minds.staleness import changes_at_ms
from streams.alerts import Quarantines
from streams.grants import PoolGrants
from streams.row_text import RowText

Place = tuple[str, str]
"""Region and pool."""


class Due(NamedTuple):
    """When a row must be made again: ``beat_ms`` after it was published last, or as soon as age alone changes
    what it says."""

    beat_ms: float
    changes_ms: float


@dataclass(slots=True)
class ShownInstance:
    """An instance's row for one pool, and when it was published last."""

    row: Any
    place: Place
    due: Due
    published_ms: float
    queued: bool = False
    text: RowText | None = None

    @property
    def due_ms(self) -> float:
        """When it must be made again, whatever happens."""
        return min(self.published_ms + self.due.beat_ms, self.due.changes_ms)


@dataclass(slots=True)
class ShownRegion:
    """A region and pool: its instances' rows by key, their sums, and when its own row is due."""

    rows: dict[str, Any] = field(default_factory=dict)
    members: Members = field(default_factory=lambda: members_of([]))
    stale: bool = True
    summed_at_ms: float = 0.0
    knees: dict[str, float | None] = field(default_factory=dict)
    due_ms: float = 0.0
    touched: bool = True

    def sums(self, now_ms: float, max_age_ms: float) -> Members:
        """The sums over the instances, made again where a row changed and they are old enough."""
        if self.stale and now_ms - self.summed_at_ms >= max_age_ms:
            self.members = members_of(list(self.rows.values()), self.knees)
            self.stale, self.summed_at_ms = False, now_ms
        return self.members


@dataclass(slots=True)
class Owned:
    """One partition under this worker's claims."""

    epochs: dict[str, int]
    version: int = 0
    instances: dict[str, ShownInstance] = field(default_factory=dict)
    regions: dict[Place, ShownRegion] = field(default_factory=dict)
    published: dict[str, set[str]] = field(default_factory=dict)
    grants: dict[Place, PoolGrants] = field(default_factory=dict)
    granted_at_ms: float = 0.0
    alerts: Quarantines = field(default_factory=Quarantines)
    _queue: list[tuple[float, str]] = field(default_factory=list)

    def show(
        self,
        key: str,
        row: Any,
        place: Place,
        due: Due,
        now_ms: float,
        knee: float | None = None,
        text: RowText | None = None,
    ) -> None:
        """Take an instance's new row, published now."""
        shown = self.instances.get(key)
        if shown is None:
            shown = self.instances[key] = ShownInstance(row, place, due, now_ms)
        elif shown.place != place:
            self._leave(shown.place, key)
        shown.row, shown.place, shown.due, shown.text = row, place, due, text
        shown.published_ms = now_ms
        if not shown.queued:
            heapq.heappush(self._queue, (shown.due_ms, key))
            shown.queued = True
        region = self.region(place)
        region.rows[key] = row
        region.knees[row.instance] = knee
        region.stale = region.touched = True

    def drop(self, key: str) -> bool:
        """Forget an instance; whether it was there."""
        shown = self.instances.pop(key, None)
        if shown is not None:
            self._leave(shown.place, key)
        return shown is not None

    def region(self, place: Place) -> ShownRegion:
        """The region and pool, made where it is new."""
        found = self.regions.get(place)
        if found is None:
            found = self.regions[place] = ShownRegion()
        return found

    def due(self, now_ms: float) -> Iterator[str]:
        """The keys of instances whose time has come."""
        while self._queue and self._queue[0][0] <= now_ms:
            _, key = heapq.heappop(self._queue)
            shown = self.instances.get(key)
            if shown is None:
                continue
            if shown.due_ms > now_ms:  # it was published again meanwhile
                heapq.heappush(self._queue, (shown.due_ms, key))
                continue
            shown.queued = False
            yield key

    def next_due_ms(self) -> float:
        """When the next instance may be due."""
        return self._queue[0][0] if self._queue else float("inf")

    def _leave(self, place: Place, key: str) -> None:
        region = self.regions.get(place)
        if region is not None and (row := region.rows.pop(key, None)) is not None:
            region.knees.pop(row.instance, None)
            region.stale = region.touched = True


def due_of(row: Any, heard_ms: int, now_ms: float, heartbeat_ms: float, quiet_ms: float) -> Due:
    """When this row must be made again."""
    changes_ms = float("inf")
    if row.sampled_at_ms is not None:
        changes_ms = changes_at_ms(row.sampled_at_ms, now_ms, READING_VALID_MS)
    leaves_ms = heard_ms + SILENT_LEAVES_MS + 1
    if leaves_ms > now_ms:
        changes_ms = min(changes_ms, leaves_ms)
    return Due(quiet_ms if row.valid_for_ms >= QUIET_VALID_MS else heartbeat_ms, changes_ms)
