"""The envelope: a batch of events of one producer, identified for ever by (producer, boot, seq)."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import Field

from schemas.base import EpochMs, Event, Name, Record

E = TypeVar("E", bound=Event)
MAX_EVENTS = 1000
"""No envelope holds more events than this."""


class Envelope(Record, Generic[E]):
    """A record of a raw topic. The identity survives mirroring, when offsets change.

    ``seq`` counts the envelopes of one producer boot and topic from 0 without gaps.
    """

    producer: Name
    boot: Name
    seq: Annotated[int, Field(ge=0, le=2**53)]
    sent_at_ms: EpochMs
    events: Annotated[list[E], Field(min_length=1, max_length=MAX_EVENTS)]


def envelope_header(event: type[Event]) -> str:
    """The ``schema`` header of an envelope of these events: ``name.batch/version``."""
    return f"{event.schema_name}.batch/{event.schema_version}"
