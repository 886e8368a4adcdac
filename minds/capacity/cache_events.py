"""What KV events tell the instance table: when an engine last told any, and how fast its cache loses blocks.

The table does not hold the content. Agents restate all that a cache holds now and then, so sums of what was
stored and removed do not balance, and a set of block names an instance is what routers keep, which read the
topic themselves. Removals are never restated: they are counted by seconds, and add up in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from minds.capacity.registers import UNKNOWN
from schemas.fastpath import struct_of
from schemas.readings import Reading

SLOT_MS = 10_000
SPAN_MS = 60_000
SLOTS = SPAN_MS // SLOT_MS + 2
TOLD_FOR_MS = 15 * 60_000
"""An engine whose cache does not change says nothing but for the agent's restatement: longer is unknown."""
FIELDS = ("instance", "boot", "pool", "at_ms", "kind", "prefix")
"""What the fold needs of an event (schemas.fastpath.projection_of)."""

_Reading = struct_of(Reading)


class CacheNews(msgspec.Struct, array_like=True):
    """Of one boot of an instance. ``removed`` holds fleet blocks by epoch ms // 10 s."""

    last_at_ms: int = 0
    removed: dict[int, int] = {}


CacheTold = dict[str, CacheNews]
"""By boot."""


def count_kv_event(told: CacheTold, event: Any) -> None:
    """Count a schemas.caches.KvEvent (or a struct of ``FIELDS``)."""
    news = _news(told, event.boot)
    news.last_at_ms = max(news.last_at_ms, event.at_ms)
    if event.kind == "removed" and event.prefix is not None:
        slot = event.at_ms // SLOT_MS
        news.removed[slot] = news.removed.get(slot, 0) + len(event.prefix.blocks)


def add_cache_told(total: CacheTold, delta: CacheTold) -> None:
    """Add a delta to another or to a total, in place. ``delta`` stays as it is."""
    for boot, theirs in delta.items():
        mine = _news(total, boot)
        mine.last_at_ms = max(mine.last_at_ms, theirs.last_at_ms)
        for slot, blocks in theirs.removed.items():
            mine.removed[slot] = mine.removed.get(slot, 0) + blocks


def forget_old(told: CacheTold, mark_ms: int) -> None:
    """Drop, at the record time ``mark_ms``, what no reading needs any more."""
    first = mark_ms // SLOT_MS - SLOTS + 1
    for boot, news in list(told.items()):
        for slot in [slot for slot in news.removed if slot < first]:
            del news.removed[slot]
        if not news.removed and mark_ms - news.last_at_ms > TOLD_FOR_MS:
            del told[boot]


def _news(told: CacheTold, boot: str) -> CacheNews:
    found = told.get(boot)
    if found is None:
        found = told[boot] = CacheNews(0, {})
    return found


def cache_readings(parts: Iterable[CacheTold], boot: str, now_ms: int) -> tuple[int | None, Any]:
    """When this boot last told a KV event, and the fleet blocks a second that left its cache over the last
    minute (a struct of schemas.readings.Reading); None and unknown where it told none for 15 minutes.

    ``parts`` are the closed total and the deltas of the open partials.
    """
    news = [part[boot] for part in parts if boot in part]
    last_at_ms = max((each.last_at_ms for each in news), default=0)
    if now_ms - last_at_ms > TOLD_FOR_MS:
        return None, UNKNOWN
    now_slot = now_ms // SLOT_MS
    removed = sum(
        blocks
        for each in news
        for slot, blocks in each.removed.items()
        if now_slot - SPAN_MS // SLOT_MS <= slot < now_slot
    )
    # Whole slots only: the one that is not over would understate it.
    return last_at_ms, _Reading(value=removed * 1000.0 / SPAN_MS, quality="fresh", age_ms=0.0)
