"""What an agent keeps of its telemetry while the broker is away. Pure: it holds, others send.

Counters are totals within a boot and gauges hold until the next, so one event a second and engine rank says
all that a reader of the past needs: a *rollup* of the scrapes of that second is its newest. Rollups are
bounded in number; the oldest go first, and are counted.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

ROLLUP_MS = 1_000
_Key = tuple[str, int, str, int]


class RollupBuffer:
    """The newest telemetry event of each (instance, rank, boot) and second, oldest second first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[_Key, Any] = OrderedDict()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, event: Any) -> None:
        """Keep an event (a telemetry struct) in place of an older one of its second."""
        key = (event.instance, event.rank, event.boot, event.at_ms // ROLLUP_MS)
        held = self._held.get(key)
        if held is not None and held.latencies:
            event = _with_latencies_of(held, event)
        self._held[key] = event
        while len(self._held) > self._limit:
            self._held.popitem(last=False)
            self.dropped += 1

    def take(self, most: int) -> list[Any]:
        """Remove and return the oldest, at most so many."""
        return [self._held.popitem(last=False)[1] for _ in range(min(most, len(self._held)))]


def _with_latencies_of(held: Any, event: Any) -> Any:
    """Totals are told when they changed, perhaps by an earlier scrape of the second: none must get lost."""
    by_name = {totals.name: totals for totals in (*held.latencies, *event.latencies)}
    return msgspec.structs.replace(event, latencies=list(by_name.values()))
