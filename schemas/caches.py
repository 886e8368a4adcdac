"""fleet.placements and fleet.kv: where prefixes were sent, and what engines say they hold."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import EpochMs, Event, Name, PoolId
from schemas.prefixes import PrefixKey


class Placement(Event):
    """A router sent a request with this prefix to this instance."""

    schema_name: ClassVar[str] = "placement"
    key_fields: ClassVar[tuple[str, ...]] = ("pool", "instance")

    decision_id: Name
    pool: PoolId
    instance: Name
    instance_boot: Name
    at_ms: EpochMs
    prefix: PrefixKey


class KvEvent(Event):
    """An engine stored, removed or cleared cache blocks. Token ids were hashed and dropped at the source."""

    schema_name: ClassVar[str] = "kv"
    key_fields: ClassVar[tuple[str, ...]] = ("pool", "instance")

    instance: Name
    boot: Name
    rank: Annotated[int, Field(ge=0, le=4096)] = 0
    pool: PoolId
    at_ms: EpochMs
    engine_seq: Annotated[int, Field(ge=0, le=2**53)]
    kind: Literal["stored", "removed", "cleared"]
    medium: Name = "device"
    prefix: PrefixKey | None = Field(
        default=None,
        description="The blocks concerned; each hash covers all before it. None for cleared: all media.",
    )
