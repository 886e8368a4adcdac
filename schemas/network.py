"""fleet.links: how far one region's routers are from another region."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import DurationMs, EpochMs, Event, Name
from schemas.readings import Reading


class LinkProbe(Event):
    """One probe from a region to another. Price is in US dollars per GiB that leaves ``from_region``."""

    schema_name: ClassVar[str] = "link"
    key_fields: ClassVar[tuple[str, ...]] = ("from_region", "to_region")

    from_region: Name
    to_region: Name
    at_ms: EpochMs
    rtt_ms: Reading
    loss_ratio: Reading
    bandwidth_mbit_per_s: Reading
    egress_usd_per_gib: Annotated[float, Field(ge=0, le=1000)] | None = None
    valid_for_ms: DurationMs | None = Field(
        default=None,
        description="How old a reading may be and still be fresh: a few of the probe's intervals.",
    )
