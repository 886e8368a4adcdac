"""fleet.quotas and fleet.leases: how much work may be in flight, and who may hold how much of it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import DurationMs, Name, PoolId, Ratio, Record, Row, WorkTokens


class ClassQuota(Record):
    """What one class may have in flight in a region and pool."""

    service_class: Name
    share: Ratio
    work_tokens: WorkTokens


class QuotaRow(Row):
    """The cap of a region and pool, divided by class. The region that owns it writes it, nobody else."""

    schema_name: ClassVar[str] = "quota"

    region: Name
    pool: PoolId
    cap_work_tokens: WorkTokens | None = Field(description="None: no cap.")
    granted_work_tokens: WorkTokens
    exposed_work_tokens: WorkTokens = Field(
        description="Live leases plus unfinished work; never over the cap."
    )
    classes: list[ClassQuota] = []
    reason: Annotated[str, Field(max_length=500)] = ""

    def key(self) -> str:
        return f"{self.region}|{self.pool}"


class LeaseRow(Row):
    """A holder's right to have ``work_tokens`` in flight.

    The holder counts it from the moment at which it *sent* the request with ``request_seq``, for
    ``duration_ms`` of its own clock; so no clocks are compared. Work admitted under it counts until it ends.
    """

    schema_name: ClassVar[str] = "lease"

    region: Name
    pool: PoolId
    service_class: Name
    holder: Name
    holder_boot: Name
    request_seq: Annotated[int, Field(ge=0, le=2**53)] = Field(
        description="The router row version it answers."
    )
    lease_id: Name
    work_tokens: WorkTokens
    exposed_work_tokens: WorkTokens = Field(description="What the grantor still counts against this holder.")
    floor_work_tokens: WorkTokens = Field(
        default=0.0, description="Of the region and pool, whatever the class: outlives the lease."
    )
    duration_ms: DurationMs

    def key(self) -> str:
        return f"{self.region}|{self.pool}|{self.service_class}|{self.holder}"
