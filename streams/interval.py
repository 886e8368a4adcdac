"""Stage one's fold: the records of an interval become deltas a key, and those a rollup a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import msgspec

from minds.capacity.folds import Delta, fold_outcome, fold_telemetry, parse_key
from schemas.codec import Headers, Refused, decode_events
from schemas.fastpath import encode, struct_of
from schemas.operations import Partial, Rollup, Segment
from schemas.topics import OUTCOMES, ROLLUPS, TELEMETRY, Topic
from transport.partitioning import partition_of

Fold = Callable[[dict[str, Delta], Any, int], None]
FOLDS: dict[str, tuple[Topic, Fold]] = {
    OUTCOMES.name: (OUTCOMES, fold_outcome),
    TELEMETRY.name: (TELEMETRY, fold_telemetry),
}
"""What the combiner reads, and how."""
TARGET_RECORD_BYTES = 512 * 1024
"""A rollup is split beyond this; each part holds other keys, so the merge rule does not mind."""

_Partial, _Segment, _Rollup = struct_of(Partial), struct_of(Segment), struct_of(Rollup)


class RecordLike(Protocol):
    """A consumed Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class ClockBounds:
    """How far an event's time may be from its record's, in milliseconds."""

    ahead_ms: float
    behind_ms: float


@dataclass(slots=True)
class SourceInterval:
    """What was read of one source partition since its last commit. ``upto`` is the next offset to read."""

    topic: str
    partition: int
    generation: int
    base: int
    upto: int
    first_event_at_ms: int | None = None
    deltas: dict[str, Delta] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The source's name in rollups."""
        return f"{self.topic}:{self.partition}"

    def take(self, record: RecordLike, bounds: ClockBounds) -> int:
        """Fold one record; returns its events. Raises Refused; what it could use is folded even then.

        Either way the record has been read: ``upto`` moves past it.
        """
        if record.offset < self.upto:
            return 0
        self.upto = record.offset + 1
        topic, fold = FOLDS[self.topic]
        events = decode_events(topic, record.headers, record.value).events
        wrong = None
        for event in events:
            ahead_ms = event.at_ms - record.timestamp
            if ahead_ms > bounds.ahead_ms or -ahead_ms > bounds.behind_ms:
                wrong = ahead_ms
                continue
            if self.first_event_at_ms is None or event.at_ms < self.first_event_at_ms:
                self.first_event_at_ms = event.at_ms
            fold(self.deltas, event, record.timestamp)
        if wrong is not None:
            side = "ahead of" if wrong > 0 else "behind"
            raise Refused(
                "wrong_clock",
                f"{self.topic}: an event is {abs(wrong) / 1000:.0f} s {side} its record's time; allowed are "
                f"{bounds.ahead_ms / 1000:.0f} s ahead and {bounds.behind_ms / 1000:.0f} s behind. "
                "Events with a sound clock in the same record were used.",
            )
        return len(events)

    def next(self) -> None:
        """Start the next interval: this one is committed."""
        self.base, self.first_event_at_ms, self.deltas = self.upto, None, {}


@cache
def rollup_partition(pool: str) -> int:
    """The partition that owns this pool."""
    return partition_of(pool, ROLLUPS.partitions)


def rollups_of(sources: list[SourceInterval], combiner: str, at_ms: int) -> Iterator[tuple[int, bytes, int]]:
    """The interval's records: ``(partition, value, partials)``, one a partition unless it grows too large."""
    by_partition: dict[int, list[tuple[SourceInterval, str, msgspec.Raw]]] = {}
    for source in sources:
        for key, delta in source.deltas.items():
            partition = rollup_partition(parse_key(key).pool)
            raw = msgspec.Raw(msgspec.json.encode(delta))
            by_partition.setdefault(partition, []).append((source, key, raw))
    for partition, entries in by_partition.items():
        at = 0
        while at < len(entries):
            size, start = 0, at
            while at < len(entries) and (size < TARGET_RECORD_BYTES or at == start):
                size += len(bytes(entries[at][2])) + len(entries[at][1]) + 30
                at += 1
            yield partition, _encode(entries[start:at], combiner, at_ms), at - start


def _encode(entries: list[tuple[SourceInterval, str, msgspec.Raw]], combiner: str, at_ms: int) -> bytes:
    grouped: dict[str, tuple[SourceInterval, list[Any]]] = {}
    for source, key, raw in entries:
        grouped.setdefault(source.name, (source, []))[1].append(_Partial(key=key, delta=raw))
    segments = [
        _Segment(
            source=name,
            generation=source.generation,
            base=source.base,
            upto=source.upto,
            first_event_at_ms=source.first_event_at_ms,
            partials=partials,
        )
        for name, (source, partials) in grouped.items()
    ]
    return encode(_Rollup(combiner=combiner, at_ms=at_ms, segments=segments))
