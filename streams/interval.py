"""Stage one's fold: the records of an interval become deltas a key, and those a rollup a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from minds.capacity import cache_events
from minds.capacity.cell_columns import CellColumns
from minds.capacity.columns import ColumnFold, Keys
from minds.capacity.columns import warm_up as warm_up_columns
from minds.capacity.folds import Delta, fold_decision, fold_kv_event, fold_telemetry, parse_key
from minds.capacity.kept_cells import warm_up as warm_up_kept_cells
from minds.capacity.outcomes import FIELDS, OPTIONAL, OutcomeFold, keys_are_sound, names_are_sound
from minds.capacity.window_bank import warm_up as warm_up_windows
from minds.windows import LATE_AFTER_MS
from schemas.codec import Refused, decode_events
from schemas.projections import ProjectedReader
from schemas.topics import DECISIONS, KV, OUTCOMES, ROLLUPS, TELEMETRY
from streams.outcome_columns import OutcomeReader
from streams.outcome_columns import warm_up as warm_up_reader
from streams.record_batches import RecordBatch
from streams.record_writer import warm_up as warm_up_writer
from streams.rollups import WireSegment, encode_delta, encode_rollup, packed
from transport.partitioning import partition_of

SOURCES = (OUTCOMES.name, TELEMETRY.name, DECISIONS.name, KV.name)
"""What the combiner reads."""
TARGET_RECORD_BYTES = 512 * 1024
"""A rollup is split beyond this; each part holds other keys, so the merge rule does not mind."""
MOST_NAMES = 200_000
"""Names of instances, boots, regions and pools that are remembered: a few megabytes."""

_OUTCOMES = ProjectedReader(OUTCOMES, FIELDS, OPTIONAL)
_DECISION_FIELDS = (
    *("pool", "instance", "instance_boot", "region", "entry_region"),
    *("verdict", "at_ms", "deadline_at_ms", "work_tokens"),
)
_TOLD: dict[str, tuple[ProjectedReader, Callable[[dict[str, Delta], Any, int], None]]] = {
    DECISIONS.name: (ProjectedReader(DECISIONS, _DECISION_FIELDS), fold_decision),
    KV.name: (ProjectedReader(KV, cache_events.FIELDS), fold_kv_event),
}


class Outcomes:
    """What reads a combiner's outcomes: the reader, and the keys of the names that it knows."""

    def __init__(self) -> None:
        self.reader = OutcomeReader()
        self.keys = Keys(self.reader.names, rollup_partition)

    def forget_names(self) -> None:
        """Start the names anew where there are too many; only while no interval holds any outcome."""
        if len(self.reader.names) > MOST_NAMES:
            self.reader.forget_names()
            self.keys = Keys(self.reader.names, rollup_partition)


def warm_up() -> None:
    """Compile what both stages run, or load what was compiled before: seconds the first time."""
    warm_up_columns()
    warm_up_writer()
    warm_up_reader()
    warm_up_kept_cells()
    warm_up_windows()


class RecordLike(Protocol):
    """A consumed Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Any: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class ClockBounds:
    """How far an event's time may be from its record's, in milliseconds."""

    ahead_ms: float
    behind_ms: float


RefusedRecord = tuple[RecordLike, Refused]


@dataclass(slots=True)
class SourceInterval:
    """What was read of one source partition since its last commit. ``upto`` is the next offset to read."""

    topic: str
    partition: int
    generation: int
    base: int
    upto: int
    reading: Outcomes
    mark_ms: int = 0
    """The latest time stamp of its records."""
    _columns: ColumnFold | None = None
    _outcomes: OutcomeFold = field(default_factory=OutcomeFold)
    _told: dict[str, Delta] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The source's name in rollups."""
        return f"{self.topic}:{self.partition}"

    @property
    def deltas(self) -> dict[str, Delta]:
        """What the interval tells but for the cells of plain outcomes; made anew at each call."""
        if self.topic != OUTCOMES.name:
            return self._told
        deltas = self._outcomes.deltas(self.mark_ms)
        if self._columns is not None:
            self._columns.add_ends(deltas, self.mark_ms)
        return deltas

    @property
    def cells(self) -> dict[int, CellColumns]:
        """Those cells, by partition of rollups."""
        return {} if self._columns is None else self._columns.cells(self.mark_ms)

    def take(self, batches: Sequence[RecordBatch], bounds: ClockBounds) -> tuple[int, list[RefusedRecord]]:
        """Fold the records of batches that were not read before, in order.

        Returns how many events they held, and which could not be used as a whole; what could be used of those
        is folded even then. All have been read: ``upto`` moves past them.
        """
        events, refused = 0, list[RefusedRecord]()
        for batch in batches:
            first = self.upto
            if batch.next_offset <= first:
                continue
            self.upto = batch.next_offset
            self.mark_ms = max(self.mark_ms, batch.last_ms)
            if self.topic == OUTCOMES.name:
                from_ms, to_ms = batch.last_ms - LATE_AFTER_MS, batch.first_ms + bounds.ahead_ms
                odd, _ = self.reading.reader.add(batch, from_ms, to_ms, first)
                records, fold = [batch.records[place] for place in odd], self._outcome
            else:
                records = [record for record in batch.records if record.offset >= first]
                fold = self._telemetry if self.topic == TELEMETRY.name else self._others
            some, wrong = self._each(records, fold, bounds)
            events += some
            refused += wrong
        if self.topic == OUTCOMES.name:
            read = self.reading.reader.taken()
            if self._columns is None:
                self._columns = ColumnFold(self.reading.keys)
            self._columns.take(read)
            events += len(read)
        return events, refused

    def next(self) -> None:
        """Start the next interval: this one is committed."""
        self.base, self.mark_ms = self.upto, 0
        self._columns, self._outcomes, self._told = None, OutcomeFold(), {}

    def _each(
        self, records: Sequence[RecordLike], fold: Callable[[Any, ClockBounds], int], bounds: ClockBounds
    ) -> tuple[int, list[RefusedRecord]]:
        events, refused = 0, []
        for record in records:
            try:
                events += fold(record, bounds)
            except Refused as error:
                refused.append((record, error))
        return events, refused

    def _outcome(self, record: RecordLike, bounds: ClockBounds) -> int:
        events = _OUTCOMES.events(record.headers, record.value)
        stamp = record.timestamp
        if odd := self._outcomes.take(events, stamp - LATE_AFTER_MS, stamp + bounds.ahead_ms):
            self._closely(odd, record, bounds)
        return len(events)

    def _closely(self, outcomes: list[Any], record: RecordLike, bounds: ClockBounds) -> None:
        """Fold each one whose clock and names are sound; Refused for the record where any is not."""
        wrong: Refused | None = None
        for outcome in outcomes:
            try:
                _check_clock(self.topic, outcome.at_ms - record.timestamp, bounds)
                if not names_are_sound(outcome):
                    reason = f"{self.topic}: a name holds characters that no name may have."
                    raise Refused("impossible_value", reason)
            except Refused as error:
                wrong = error
            else:
                self._outcomes.take_one(outcome, record.timestamp)
        if wrong is not None:
            raise wrong

    def _others(self, record: RecordLike, bounds: ClockBounds) -> int:
        """Decisions and KV events: of both a few fields are read."""
        reader, fold = _TOLD[self.topic]
        events = reader.events(record.headers, record.value)
        wrong: Refused | None = None
        for event in events:
            try:
                _check_clock(self.topic, event.at_ms - record.timestamp, bounds)
                if not keys_are_sound(event):
                    reason = f"{self.topic}: a name holds characters that no name may have."
                    raise Refused("impossible_value", reason)
            except Refused as error:
                wrong = error
            else:
                fold(self._told, event, record.timestamp)
        if wrong is not None:
            raise wrong
        return len(events)

    def _telemetry(self, record: RecordLike, bounds: ClockBounds) -> int:
        events = decode_events(TELEMETRY, tuple(record.headers), record.value).events
        wrong: Refused | None = None
        for event in events:
            try:
                _check_clock(self.topic, event.at_ms - record.timestamp, bounds)
            except Refused as error:
                wrong = error
            else:
                fold_telemetry(self._told, event, record.timestamp)
        if wrong is not None:
            raise wrong
        return len(events)


def _check_clock(topic: str, ahead_ms: float, bounds: ClockBounds) -> None:
    if -bounds.behind_ms <= ahead_ms <= bounds.ahead_ms:
        return
    raise Refused(
        "wrong_clock",
        f"{topic}: an event is {abs(ahead_ms) / 1000:.0f} s {'ahead of' if ahead_ms > 0 else 'behind'} its "
        f"record's time; allowed are {bounds.ahead_ms / 1000:.0f} s ahead and "
        f"{bounds.behind_ms / 1000:.0f} s behind. Events with a sound clock in the same record were used.",
    )


@cache
def rollup_partition(pool: str) -> int:
    """The partition that owns this pool."""
    return partition_of(pool, ROLLUPS.partitions)


def rollups_of(sources: list[SourceInterval], combiner: str, at_ms: int) -> Iterator[tuple[int, bytes, int]]:
    """The interval's records: ``(partition, value, partials)``, one a partition unless it grows too large."""
    by_partition: dict[int, list[_Part]] = {}
    for source in sources:
        for partition, part in _parts_of(source):
            by_partition.setdefault(partition, []).append(part)
    for partition, parts in by_partition.items():
        at = 0
        while at < len(parts):
            size, start, packed_of = 0, at, set()
            while at < len(parts) and (size + parts[at].size_bytes < TARGET_RECORD_BYTES or at == start):
                part = parts[at]
                if part.cells is not None:
                    if part.source.name in packed_of:
                        break  # a segment holds one set of cells
                    packed_of.add(part.source.name)
                size += part.size_bytes
                at += 1
            together = parts[start:at]
            yield partition, _encode(together, combiner, at_ms), sum(part.keys for part in together)


class _Part(NamedTuple):
    """What is told of some keys: a key is in one part only, since it takes its interval at once."""

    source: SourceInterval
    size_bytes: int
    keys: int
    deltas: list[tuple[str, bytes]]
    cells: CellColumns | None = None


def _parts_of(source: SourceInterval) -> Iterator[tuple[int, _Part]]:
    """By partition: the cells in parts, each with what else is told of its keys, then the others."""
    texts = {key: encode_delta(delta) for key, delta in source.deltas.items()}
    for partition, all_cells in source.cells.items():
        for cells in all_cells.split(TARGET_RECORD_BYTES // 2):
            deltas = [(key, texts.pop(key)) for key in cells.keys if key in texts] if texts else []
            size = cells.size_bytes() + sum(map(_size, deltas))
            yield partition, _Part(source, size, len(cells.keys), deltas, cells)
    for entry in texts.items():
        yield rollup_partition(parse_key(entry[0]).pool), _Part(source, _size(entry), 1, [entry])


def _size(entry: tuple[str, bytes]) -> int:
    return len(entry[0]) + len(entry[1]) + 30


def _encode(parts: list[_Part], combiner: str, at_ms: int) -> bytes:
    grouped: dict[str, tuple[WireSegment, list[tuple[str, bytes]]]] = {}
    for source, _, _, deltas, cells in parts:
        held = grouped.get(source.name)
        if held is None:
            segment = WireSegment(source.name, source.generation, source.base, source.upto, [])
            held = grouped[source.name] = (segment, [])
        held[1].extend(deltas)
        if cells is not None:
            held[0].cells = packed(cells)
    return encode_rollup(combiner, at_ms, list(grouped.values()))
