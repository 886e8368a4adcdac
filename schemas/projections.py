"""Records of a raw topic decoded to only the fields that a reader uses.

What it does not use it does not check: another reader may refuse a record that this one took.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.base import header_of
from schemas.codec import SCHEMA_HEADER, Headers, Refused, schema_header, unknown_schema
from schemas.envelopes import Envelope, envelope_header
from schemas.fastpath import projection_of, struct_of
from schemas.topics import Topic


class ProjectedReader:
    """Decodes the records of one raw topic, single events and envelopes, to structs of some fields."""

    def __init__(self, topic: Topic, fields: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        model: Any = topic.model
        self._topic = topic
        self._single = (SCHEMA_HEADER, header_of(model).encode())
        self._batch = (SCHEMA_HEADER, envelope_header(model).encode())
        event: Any = projection_of(model, fields, optional)
        self._one = msgspec.json.Decoder(event)
        frame: Any = struct_of(Envelope[model], False)
        others = [
            (info.encode_name, info.type)
            for info in msgspec.structs.fields(frame)
            if info.encode_name != "events"
        ]
        events: Any = next(i.type for i in msgspec.structs.fields(frame) if i.encode_name == "events")
        bounds = msgspec.inspect.type_info(events)
        several = _bounded(event, bounds)
        self._many: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("ProjectedEnvelope", [*others, ("events", several)], gc=False)
        )

    def events(self, headers: Headers, value: bytes | None) -> list[Any]:
        """The events of one record. Raises Refused."""
        if value is None:
            reason = f"{self._topic.name}: the record has no value; only rows have tombstones."
            raise Refused("unparseable", reason)
        try:
            if self._batch in headers:
                found: list[Any] = self._many.decode(value).events
                return found
            if self._single in headers:
                return [self._one.decode(value)]
        except msgspec.ValidationError as error:
            raise Refused("impossible_value", f"{self._topic.name}: {error}."[:500]) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused("unparseable", f"{self._topic.name}: not JSON: {error}."[:500]) from None
        raise unknown_schema(self._topic, schema_header(headers))


def _bounded(event: Any, bounds: Any) -> Any:
    from typing import Annotated

    meta = msgspec.Meta(min_length=bounds.min_length, max_length=bounds.max_length)
    return Annotated[list[event], meta]
