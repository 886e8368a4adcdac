"""fleet.routers: each router's heartbeat, its demand, and so its requests for leases."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, EpochMs, Name, PoolId, Record, Row, Version, WorkTokens


class Demand(Record):
    """What a router has and wants in one region, pool and class."""

    region: Name
    pool: PoolId
    service_class: Name
    in_flight_work_tokens: WorkTokens = Field(description="Admitted under leases and not yet ended.")
    wanted_work_tokens: WorkTokens = Field(description="In flight plus what it expects to admit next.")
    held_epoch: Version | None = Field(default=None, description="The newest lease row that it has taken up.")
    held_version: Version | None = None


class RouterRow(Row):
    """A router's heartbeat; ``version`` is the request number that leases echo."""

    schema_name: ClassVar[str] = "router"

    router: Name
    boot: Name
    boot_started_at_ms: EpochMs
    entry_region: Name
    url: Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s]+$")]
    mode: Literal["normal", "degraded", "stopping"] = "normal"
    in_flight_requests: Count = 0
    demands: list[Demand] = []

    def key(self) -> str:
        return self.router
