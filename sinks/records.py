"""Kafka records to rows of a table, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.base import EARLIEST_MS, LATEST_MS, Event
from schemas.codec import Headers, Refused, decode_events, decode_row
from schemas.operations import CLAIM_KEY
from sinks.blocks import Row
from sinks.clickhouse.tables import Table

AHEAD_LIMIT_MS = 10 * 60_000
"""An event may be dated this far after the record that holds it; further is a wrong clock."""
BEHIND_LIMIT_MS = 24 * 3_600_000
"""Raw events may be dated this far before their record. Less than retention and TTL differ by, so that no
row expires in the store while its record is still in the log."""


class KafkaRecord(Protocol):
    """What the sink reads of a consumer's record."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Any


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that goes to the dead letters."""

    topic: str
    partition: int
    offset: int
    headers: Headers
    value: bytes | None
    refused: Refused


@dataclass(slots=True)
class Batch:
    """What was read since the last flush: pinned, so that a retry is the same batch."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Table name to rows, of each partition in order."""
    bad: list[BadRecord] = field(default_factory=list)
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    good_records: int = 0

    @property
    def row_count(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def add(self, table: Table, records: Iterable[KafkaRecord]) -> None:
        """Decode records of one topic partition, in order."""
        for record in records:
            self.next_offsets[(table.topic.name, record.partition)] = record.offset + 1
            headers = tuple(record.headers or ())
            try:
                rows = rows_of(table, record, headers)
            except Refused as refused:
                self.bad.append(
                    BadRecord(
                        table.topic.name, record.partition, record.offset, headers, record.value, refused
                    )
                )
                continue
            self.good_records += 1
            self.rows.setdefault(table.name, []).extend(rows)


def rows_of(table: Table, record: KafkaRecord, headers: Headers) -> list[Row]:
    """The rows of one record; none for claims and tombstones. Raises schemas.codec.Refused."""
    if issubclass(table.topic.model, Event):
        decoded = decode_events(table.topic, headers, record.value)
        events, identity = decoded.events, (decoded.producer, decoded.boot, decoded.seq)
    else:
        if record.value is None or (table.topic.claimed and record.key == CLAIM_KEY.encode()):
            return []
        events, identity = [decode_row(table.topic, headers, record.value)], (None, None, None)
    logged_at_ms = min(max(record.timestamp, EARLIEST_MS), LATEST_MS)
    where = (table.topic.name, record.partition, record.offset)
    clock, rows = table.clock_field, []
    for number, event in enumerate(events):
        at_ms: int = getattr(event, clock)
        _check_clock(table, at_ms, logged_at_ms)
        values = [*where, number, *identity, logged_at_ms, *table.values(event)]
        rows.append(Row(record.partition, record.offset, number, at_ms, values))
    return rows


def _check_clock(table: Table, at_ms: int, logged_at_ms: int) -> None:
    ahead_ms = at_ms - logged_at_ms
    if ahead_ms > AHEAD_LIMIT_MS:
        raise Refused(
            "wrong_clock",
            f"{table.topic.name}: {table.clock_field} is {ahead_ms / 1000:.0f} s after the record itself; "
            f"at most {AHEAD_LIMIT_MS // 1000} s are taken.",
        )
    if not table.topic.compacted and -ahead_ms > BEHIND_LIMIT_MS:
        raise Refused(
            "wrong_clock",
            f"{table.topic.name}: {table.clock_field} is {-ahead_ms / 1000:.0f} s before the record itself; "
            f"at most {BEHIND_LIMIT_MS // 1000} s are taken.",
        )
