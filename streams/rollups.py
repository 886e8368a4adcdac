"""Rollups on the wire, with their deltas decoded at once to what stage two merges."""

from __future__ import annotations

import msgspec
import numpy as np

from minds.capacity.cell_columns import CellColumns
from minds.capacity.folds import Delta, parse_key
from minds.capacity.partials import Cells, Grouped, with_partials
from minds.merge import Interval, Partial
from minds.windows import WIDTH
from schemas.base import header_of
from schemas.codec import Headers, Refused, schema_header, unknown_schema
from schemas.operations import Rollup
from schemas.topics import ROLLUPS


class WirePartial(msgspec.Struct):
    """schemas.operations.Partial; stage one puts the delta in as text that it has encoded already."""

    key: str
    delta: Delta


class WireCells(msgspec.Struct):
    """schemas.operations.PackedCells."""

    mark_ms: int
    keys: list[str]
    boots: list[str]
    ends: bytes
    boot_of: bytes
    seconds: bytes
    counts: bytes
    sketch_ends: bytes
    sketches: bytes


class WireSegment(msgspec.Struct, omit_defaults=True):
    """schemas.operations.Segment."""

    source: str
    generation: int
    base: int
    upto: int
    partials: list[WirePartial]
    first_event_at_ms: int | None = None
    cells: WireCells | None = None


class WireRollup(msgspec.Struct):
    """schemas.operations.Rollup."""

    combiner: str
    at_ms: int
    segments: list[WireSegment]


_HEADERS = (header_of(Rollup), f"{Rollup.schema_name}/1")
_DECODER = msgspec.json.Decoder(WireRollup)
_ENCODER = msgspec.json.Encoder()
_SMALL = 2**31


def encode_delta(delta: Delta) -> bytes:
    """A delta as JSON."""
    return _ENCODER.encode(delta)


def encode_rollup(
    combiner: str, at_ms: int, segments: list[tuple[WireSegment, list[tuple[str, bytes]]]]
) -> bytes:
    """One record. Each segment comes with its keys and encoded deltas."""
    parts = []
    for segment, partials in segments:
        body = b",".join(b'{"key":%s,"delta":%s}' % (_ENCODER.encode(key), delta) for key, delta in partials)
        parts.append(
            _ENCODER.encode(segment)[:-1].replace(b'"partials":[]', b'"partials":[' + body + b"]", 1) + b"}"
        )
    head = _ENCODER.encode({"combiner": combiner, "at_ms": at_ms})[:-1]
    return head + b',"segments":[' + b",".join(parts) + b"]}"


def packed(columns: CellColumns) -> WireCells:
    """Columns as they are sent."""
    counts = columns.counts
    small = not counts.size or int(counts.max()) < _SMALL
    return WireCells(
        mark_ms=columns.mark_ms,
        keys=columns.keys,
        boots=columns.boots,
        ends=columns.ends.astype("<i4").tobytes(),
        boot_of=columns.boot_of.astype("<i4").tobytes(),
        seconds=columns.seconds.astype("<i8").tobytes(),
        counts=counts.astype("<i4" if small else "<i8").tobytes(),
        sketch_ends=columns.sketch_ends.astype("<i4").tobytes(),
        sketches=columns.sketches,
    )


def unpacked(cells: WireCells) -> CellColumns:
    """The columns again; ValueError for what are none."""
    seconds = np.frombuffer(cells.seconds, "<i8").astype(np.int64)
    wide = len(seconds) and len(cells.counts) == len(seconds) * WIDTH * 8
    counts = np.frombuffer(cells.counts, "<i8" if wide else "<i4").astype(np.int64)
    columns = CellColumns(
        cells.mark_ms,
        cells.keys,
        np.frombuffer(cells.ends, "<i4").astype(np.int64),
        cells.boots,
        np.frombuffer(cells.boot_of, "<i4").astype(np.int64),
        seconds,
        counts.reshape(-1, WIDTH),
        cells.sketches,
        np.frombuffer(cells.sketch_ends, "<i4").astype(np.int64),
    )
    if (wrong := columns.wrong()) is not None:
        raise ValueError(f"packed cells of {len(cells.keys)} keys: {wrong}")
    return columns


def decode_partials(headers: Headers, value: bytes | None) -> tuple[int, Grouped, list[Cells]]:
    """A rollup's time, its partials, key by key, and the cells of further keys. Raises Refused."""
    header = schema_header(headers)
    if header not in _HEADERS:
        raise unknown_schema(ROLLUPS, header)
    if value is None:
        raise Refused("unparseable", f"{ROLLUPS.name}: the record has no value.")
    try:
        rollup = _DECODER.decode(value)
        grouped: Grouped = {}
        cells: list[tuple[Interval, CellColumns]] = []
        for segment in rollup.segments:
            source, generation, base, upto = segment.source, segment.generation, segment.base, segment.upto
            for partial in segment.partials:
                parse_key(partial.key)
                merged = Partial(source, generation, base, upto, partial.delta)
                held = grouped.get(partial.key)
                if held is None:
                    grouped[partial.key] = [merged]
                else:
                    held.append(merged)
            if segment.cells is not None:
                for key in segment.cells.keys:
                    parse_key(key)
                cells.append((Interval(source, generation, base, upto), unpacked(segment.cells)))
        further = [with_partials(grouped, interval, columns) for interval, columns in cells]
    except (msgspec.ValidationError, ValueError) as error:
        kind = "impossible_value" if isinstance(error, msgspec.ValidationError) else "unparseable"
        if not isinstance(error, msgspec.DecodeError):
            kind = "impossible_value"
        raise Refused(kind, f"{ROLLUPS.name}: {error}."[:500]) from None  # type: ignore[arg-type]
    return rollup.at_ms, grouped, further
