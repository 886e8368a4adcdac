"""The building blocks of all events and rows: bounded scalar types and the two base models."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

EARLIEST_MS = 1_577_836_800_000
"""2020-01-01 UTC in epoch milliseconds: no clock of this project's time shows less."""
LATEST_MS = 4_102_444_800_000
"""2100-01-01 UTC in epoch milliseconds: a larger value is seconds, micro- or nanoseconds by mistake."""

NAME_PATTERN = r"^[A-Za-z0-9._:@/+\-]+$"
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME_PATTERN)]
"""An identifier: instance, region, router, tenant, class, model. No spaces, no control characters."""
PoolId = Annotated[
    str, Field(min_length=3, max_length=200, pattern=r"^[A-Za-z0-9._:/+\-]+@[A-Za-z0-9._:/+\-]+$")
]
"""A pool: ``model@version``; only endpoints of exactly this version belong to it."""
EpochMs = Annotated[int, Field(ge=EARLIEST_MS, le=LATEST_MS)]
"""A point in time: UTC milliseconds since 1970."""
DurationMs = Annotated[float, Field(ge=0, le=7 * 86_400_000)]
"""A duration in milliseconds, at most a week."""
Tokens = Annotated[int, Field(ge=0, le=100_000_000)]
"""A count of tokens of one request."""
Count = Annotated[int, Field(ge=0, le=2**53)]
"""A count of anything, exact in JSON."""
Version = Annotated[int, Field(ge=0, le=2**53)]
"""An epoch or a version: a Kafka offset, a boot time or a counter, exact in JSON."""
Ratio = Annotated[float, Field(ge=0, le=1)]
"""A share between 0 and 1."""
WorkTokens = Annotated[float, Field(ge=0, le=1e12)]
"""In-flight work in token equivalents: predicted uncached prefill plus decode cost (``minds.work``)."""
Sentence = Annotated[str, Field(max_length=500)]
"""A short text for people; never prompt content."""


class Record(BaseModel):
    """A part of an event or row: immutable, unknown fields ignored, NaN and infinity refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, strict=True)


class Event(Record):
    """A raw event. ``schema_name`` and ``schema_version`` go into the record's ``schema`` header."""

    schema_name: ClassVar[str]
    schema_version: ClassVar[int] = 1
    key_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that readers make keys of: their names are checked on the fast path too."""


class Row(Record):
    """A row of a compacted topic.

    Readers keep the newest by ``(epoch, version)``. The epoch is the offset of the claim record of the
    partition's owner (or, for rows that many writers own key by key, the writer's boot in epoch ms).
    """

    schema_name: ClassVar[str]
    schema_version: ClassVar[int] = 1

    as_of_ms: EpochMs = Field(description="When the figures of this row were true.")
    valid_for_ms: DurationMs = Field(description="After this age the row is stale, after twice that unknown.")
    epoch: Version = Field(description="The writer's epoch.")
    version: Version = Field(description="Rises with each write of an epoch.")

    def key(self) -> str:
        """The record key that names this row on its topic."""
        raise TypeError(f"{type(self).__name__} does not say what names its row.")


def header_of(model: type[Event] | type[Row]) -> str:
    """The ``schema`` header of a record that holds one event or row: ``name/version``."""
    return f"{model.schema_name}/{model.schema_version}"
