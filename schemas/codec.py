"""Records on the wire: JSON values with a ``schema`` header, decoded by header with reasons for refusal."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ValidationError

from schemas.base import NAME_PATTERN, Event, Row, header_of
from schemas.envelopes import Envelope, envelope_header
from schemas.fastpath import decoder_of
from schemas.topics import Topic

SCHEMA_HEADER = "schema"
Headers = tuple[tuple[str, bytes], ...]
RefusalKind = Literal["unparseable", "unknown_schema", "impossible_value", "wrong_clock"]


class Refused(ValueError):  # noqa: N818 - reads as what happened
    """A record that can't be used. ``kind`` sorts it, the message says why; neither holds its content."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: RefusalKind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Decoded:
    """Events of one record. ``producer``, ``boot`` and ``seq`` are None for a single event from others.

    ``events`` are structs of the fast path: the model's field names as attributes.
    """

    events: list[Any]
    producer: str | None = None
    boot: str | None = None
    seq: int | None = None


def to_json(model: BaseModel) -> bytes:
    """A model's wire form: compact JSON, fields at their defaults left out (missing reads as default)."""
    return model.model_dump_json(exclude_defaults=True).encode()


def headers_for(model: Event | Row | type[Event] | type[Row]) -> list[tuple[str, bytes]]:
    """Kafka headers of a record that holds one event or row."""
    cls = model if isinstance(model, type) else type(model)
    return [(SCHEMA_HEADER, header_of(cls).encode())]


def envelope_headers(event: type[Event]) -> list[tuple[str, bytes]]:
    """Kafka headers of a record that holds an envelope."""
    return [(SCHEMA_HEADER, envelope_header(event).encode())]


def schema_header(headers: Headers | list[tuple[str, bytes]]) -> str | None:
    """The value of the ``schema`` header, or None."""
    for name, value in headers:
        if name == SCHEMA_HEADER and value is not None:
            return value.decode("utf-8", "replace")[:200]
    return None


def digest(value: bytes | None) -> str:
    """SHA-256 of a record's value: what a dead letter keeps instead of content."""
    return hashlib.sha256(value or b"").hexdigest()


def decode_events(topic: Topic, headers: Headers, value: bytes | None) -> Decoded:
    """The events of a raw or internal record: an envelope, or a single event. Raises Refused."""
    if not issubclass(topic.model, Event):
        raise TypeError(f"{topic.name} holds rows, not events; use decode_row.")
    header = schema_header(headers)
    batch, single = envelope_header(topic.model), header_of(topic.model)
    if topic.enveloped and header == batch:
        envelope = _decode(Envelope[topic.model], topic, value, patterns=False)  # type: ignore[name-defined]
        _check_names(topic, topic.model, envelope.events)
        return Decoded(envelope.events, envelope.producer, envelope.boot, envelope.seq)
    if header == single:
        events = [_decode(topic.model, topic, value, patterns=not topic.enveloped)]
        _check_names(topic, topic.model, events)
        return Decoded(events)
    raise unknown_schema(topic, header)


def decode_row(topic: Topic, headers: Headers, value: bytes) -> Any:
    """The row of a compacted record as a struct of the fast path. Raises Refused."""
    header = schema_header(headers)
    if header != header_of(topic.model):
        raise unknown_schema(topic, header)
    return _decode(topic.model, topic, value)


def parse_row(topic: Topic, headers: Headers, value: bytes) -> Any:
    """As decode_row, but a validated pydantic row. Raises Refused."""
    header = schema_header(headers)
    if header != header_of(topic.model):
        raise unknown_schema(topic, header)
    try:
        return topic.model.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        kind: RefusalKind = "unparseable" if first["type"] == "json_invalid" else "impossible_value"
        where = ".".join(str(part) for part in first["loc"]) or "the value"
        raise Refused(kind, f"{topic.name}: {where}: {first['msg']}.") from None


_NAME = re.compile(NAME_PATTERN)
_GOOD_NAMES: set[str] = set()
"""Names that were checked: fleets have few, and a look-up costs a tenth of the pattern."""
_GOOD_NAMES_LIMIT = 200_000


def _check_names(topic: Topic, model: type[Event], events: list[Any]) -> None:
    for event in events:
        for field in model.key_fields:
            value = getattr(event, field)
            for name in value if isinstance(value, list) else (value,):
                if name is None or name in _GOOD_NAMES:
                    continue
                if not _NAME.match(name):
                    raise Refused(
                        "impossible_value", f"{topic.name}: {field} holds characters that no name may have."
                    )
                if len(_GOOD_NAMES) >= _GOOD_NAMES_LIMIT:
                    _GOOD_NAMES.clear()
                _GOOD_NAMES.add(name)


def _decode(model: type[BaseModel], topic: Topic, value: bytes | None, *, patterns: bool = True) -> Any:
    if value is None:
        raise Refused("unparseable", f"{topic.name}: the record has no value; only rows have tombstones.")
    try:
        return decoder_of(model, patterns).decode(value)
    except msgspec.ValidationError as error:
        raise Refused("impossible_value", f"{topic.name}: {error}."[:500]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("unparseable", f"{topic.name}: not JSON: {error}."[:500]) from None


def unknown_schema(topic: Topic, header: str | None) -> Refused:
    said = f"the schema header says {header!r}" if header else "there is no schema header"
    return Refused("unknown_schema", f"{topic.name}: {said}; this topic takes {' or '.join(topic.headers)}.")
