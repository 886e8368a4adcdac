"""What grantor and holder agree on: the terms, and what leases and reports say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

PoolKey = tuple[str, str, str]
"""(region, pool, service class)."""
FORGET_MS = 3_600_000.0
"""A holder silent for an hour is no longer known: its floor ends, on both sides."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The terms of a pool's leases. Times in milliseconds, work in token equivalents."""

    duration_ms: float = 10_000.0
    skew_ms: float = 2_000.0
    floor_work_tokens: float = 0.0
    max_intent_ms: float = 120_000.0
    forget_ms: float = FORGET_MS


class LeaseLike(Protocol):
    """What a lease row says, as a pydantic row or as a struct of the fast path."""

    region: str
    pool: str
    service_class: str
    holder: str
    holder_boot: str
    request_seq: int
    lease_id: str
    work_tokens: float
    exposed_work_tokens: float
    floor_work_tokens: float
    duration_ms: float
    epoch: int
    version: int


class DemandLike(Protocol):
    """See schemas.routers.Demand."""

    region: str
    pool: str
    service_class: str
    in_flight_work_tokens: float
    wanted_work_tokens: float
    held_epoch: int | None
    held_version: int | None


class ReportLike(Protocol):
    """See schemas.routers.RouterRow: a router's heartbeat is its request for leases."""

    router: str
    boot: str
    boot_started_at_ms: int
    version: int
    mode: str
    demands: Sequence[DemandLike]
