"""fleet.policy: what operators have decided; audited like all else. Without any, a fresh install works."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import DurationMs, Name, PoolId, Ratio, Record, Row, Sentence, WorkTokens

Switch = Literal["act", "shadow", "freeze"]


class ServiceClass(Record):
    """A class of service and its level. ``deadline_ms`` bounds the whole intent from its first attempt."""

    name: Name
    ttft_slo_ms: DurationMs = 2000.0
    tpot_slo_ms: DurationMs = 60.0
    deadline_ms: Annotated[float, Field(gt=0, le=86_400_000)] = 60_000.0
    share: Ratio = Field(default=1.0, description="Static share of each cap.")


class Residency(Record):
    """Where requests of this residency class may be served; nowhere else, also on fallback."""

    name: Name
    allowed_regions: Annotated[list[Name], Field(min_length=1)]


class Tenant(Record):
    """A tenant, known by the SHA-256 of its API key; the key itself is never stored."""

    tenant: Name
    key_sha256: Annotated[str, Field(min_length=64, max_length=64, pattern=r"^[0-9a-f]+$")]
    classes: list[Name] = Field(default=[], description="Allowed classes; empty: all.")
    pools: list[PoolId] = Field(default=[], description="Allowed pools; empty: all.")
    residency: Name | None = Field(default=None, description="Forced residency class.")


class Cap(Record):
    """The static cap of a pool and the terms of its leases."""

    pool: Annotated[str, Field(max_length=200, pattern=r"^(\*|[A-Za-z0-9._:@/+\-]+)$")] = Field(
        default="*", description="A pool or * for all."
    )
    work_tokens_per_endpoint: WorkTokens | None = Field(default=None, description="None: no cap.")
    floor_work_tokens: WorkTokens = Field(
        default=0.0, description="Carved out for each known router so that it serves when the broker is away."
    )
    lease_duration_ms: Annotated[float, Field(ge=500, le=600_000)] = 10_000.0
    clock_skew_ms: Annotated[float, Field(ge=0, le=60_000)] = 2_000.0


class Operation(Record):
    """An operator's hand on an instance, a region or a tenant."""

    kind: Literal["instance", "region", "tenant"]
    name: Name
    action: Literal["pin", "drain", "exclude"]
    reason: Sentence = ""


class Switches(Record):
    """Each mind can act, shadow (decide and log, do nothing) or freeze (hold the last state)."""

    tokenpilot: Switch = "act"
    fleetmind: Switch = "act"
    slomax: Switch = "act"


class PolicyRow(Row):
    """The policy of one scope: ``fleet`` for all, later scopes narrow it."""

    schema_name: ClassVar[str] = "policy"

    scope: Name = "fleet"
    classes: list[ServiceClass] = []
    default_class: Name | None = None
    residencies: list[Residency] = []
    tenants: list[Tenant] = []
    caps: list[Cap] = []
    operations: list[Operation] = []
    switches: Switches = Switches()
    author: Name = "operator"

    def key(self) -> str:
        return self.scope
