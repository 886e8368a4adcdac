"""fleet.spill and fleet.plan: where entry traffic goes, and where replicas should be."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Count, DurationMs, Name, PoolId, Ratio, Record, Row, Sentence


class SpillShare(Record):
    """The share of an entry's traffic that one region gets, and why."""

    region: Name
    share: Ratio
    cost_ms: DurationMs | None = None
    reason: Sentence = ""


class SpillRow(Row):
    """Shares of one entry region, pool and residency class; they sum to at most 1."""

    schema_name: ClassVar[str] = "spill"

    entry_region: Name
    pool: PoolId
    residency: Name
    shares: Annotated[list[SpillShare], Field(max_length=256)]

    def key(self) -> str:
        return f"{self.entry_region}|{self.pool}|{self.residency}"


class PlanRow(Row):
    """Replicas wanted in a region and pool some minutes ahead."""

    schema_name: ClassVar[str] = "plan"

    region: Name
    pool: PoolId
    replicas: Count
    prewarm: Count = 0
    reason: Sentence = ""

    def key(self) -> str:
        return f"{self.region}|{self.pool}"
