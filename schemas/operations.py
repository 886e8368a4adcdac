"""fleet.alerts, fleet.dead and the internal records: claims and rollups."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, EpochMs, Event, Name, Record, Row, Sentence

CLAIM_KEY = "__claim__"
"""The record key of claim records; no row has it, since ids hold no double underscores at both ends."""


class AlertRow(Row):
    """Something a person should look at."""

    schema_name: ClassVar[str] = "alert"

    alert_id: Name
    severity: Literal["info", "warning", "critical"]
    state: Literal["firing", "resolved"]
    since_ms: EpochMs
    subject: Name
    summary: Sentence

    def key(self) -> str:
        return self.alert_id


class DeadLetter(Event):
    """A record that could not be used: where it was, why, and a digest; never its content."""

    schema_name: ClassVar[str] = "dead"

    origin_topic: Name
    origin_partition: Annotated[int, Field(ge=0)]
    origin_offset: Annotated[int, Field(ge=0)]
    at_ms: EpochMs
    component: Name = Field(description="Who refused it.")
    kind: Literal["unparseable", "unknown_schema", "impossible_value", "wrong_clock"]
    reason: Sentence
    schema_header: Annotated[str, Field(max_length=200)] | None = None
    size_bytes: Count
    sha256: Annotated[str, Field(min_length=64, max_length=64, pattern=r"^[0-9a-f]+$")]


class Claim(Event):
    """The owner of a partition takes it over; this record's offset is the epoch of the rows that follow."""

    schema_name: ClassVar[str] = "claim"

    owner: Name
    at_ms: EpochMs


class Partial(Record):
    """What one interval of one source partition adds to one key (stage one of exact combining)."""

    key: Annotated[str, Field(min_length=1, max_length=700)]
    delta: dict[str, Any] = Field(description="Encoded by minds.capacity; opaque to the transport.")


class PackedCells(Record):
    """Counts and sketches of many keys, as arrays of little-endian integers in base64.

    A row a key, boot and second; the rows of a key are together (minds.capacity.cell_columns).
    """

    mark_ms: Annotated[int, Field(ge=0, le=2**53)] = Field(
        description="The highest record time stamp of the interval."
    )
    keys: list[Annotated[str, Field(min_length=1, max_length=700)]]
    boots: list[Annotated[str, Field(max_length=200)]]
    ends: str = Field(description="32 bits a key: the row after its last one.")
    boot_of: str = Field(description="32 bits a row: which of the boots.")
    seconds: str = Field(description="64 bits a row: epoch seconds.")
    counts: str = Field(description="32 or 64 bits each: the counts of a window, row by row.")
    sketch_ends: str = Field(description="32 bits each: where the three sketches of a row end.")
    sketches: str = Field(description="The sketches of TTFT, TPOT and queue, row by row.")


class Segment(Record):
    """One source partition's interval ``[base, upto)`` of offsets, re-cut only by a higher generation."""

    source: Name = Field(description="topic:partition")
    generation: Annotated[int, Field(ge=0, le=2**53)]
    base: Annotated[int, Field(ge=0, le=2**53)]
    upto: Annotated[int, Field(ge=0, le=2**53)]
    first_event_at_ms: EpochMs | None = None
    partials: list[Partial]
    cells: PackedCells | None = Field(default=None, description="What it adds to windows, of further keys.")


class Rollup(Event):
    """One flush of a combiner for one partition of pools. Version 1 had partials only."""

    schema_name: ClassVar[str] = "rollup"
    schema_version: ClassVar[int] = 2

    combiner: Name
    at_ms: EpochMs
    segments: list[Segment]
