"""Rollups on the wire, with their deltas decoded at once to what stage two merges."""

from __future__ import annotations

import msgspec

from minds.capacity.folds import Delta, parse_key
from minds.merge import Partial
from schemas.base import header_of
from schemas.codec import Headers, Refused, schema_header, unknown_schema
from schemas.operations import Rollup
from schemas.topics import ROLLUPS


class WirePartial(msgspec.Struct):
    """schemas.operations.Partial; stage one puts the delta in as text that it has encoded already."""

    key: str
    delta: Delta


class WireSegment(msgspec.Struct, omit_defaults=True):
    """schemas.operations.Segment."""

    source: str
    generation: int
    base: int
    upto: int
    partials: list[WirePartial]
    first_event_at_ms: int | None = None


class WireRollup(msgspec.Struct):
    """schemas.operations.Rollup."""

    combiner: str
    at_ms: int
    segments: list[WireSegment]


_HEADER = header_of(Rollup)
_DECODER = msgspec.json.Decoder(WireRollup)
_ENCODER = msgspec.json.Encoder()


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


def decode_partials(headers: Headers, value: bytes | None) -> tuple[int, dict[str, list[Partial[Delta]]]]:
    """A rollup's time and its partials, key by key. Raises Refused."""
    header = schema_header(headers)
    if header != _HEADER:
        raise unknown_schema(ROLLUPS, header)
    if value is None:
        raise Refused("unparseable", f"{ROLLUPS.name}: the record has no value.")
    try:
        rollup = _DECODER.decode(value)
        grouped: dict[str, list[Partial[Delta]]] = {}
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
    except (msgspec.ValidationError, ValueError) as error:
        kind = "impossible_value" if isinstance(error, msgspec.ValidationError) else "unparseable"
        if not isinstance(error, msgspec.DecodeError):
            kind = "impossible_value"
        raise Refused(kind, f"{ROLLUPS.name}: {error}."[:500]) from None  # type: ignore[arg-type]
    return rollup.at_ms, grouped
