"""Which topic goes to which table, with the columns of both the record and the event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from schemas import topics
from schemas.topics import Topic
from sinks.clickhouse.columns import TIMESTAMP, Column, columns_of

DATABASE = "tokenfleet"
RECORD_COLUMNS: tuple[tuple[str, str], ...] = (
    ("_topic", "LowCardinality(String)"),
    ("_partition", "UInt32"),
    ("_offset", "UInt64"),
    ("_event", "UInt16"),
    ("_producer", "LowCardinality(Nullable(String))"),
    ("_boot", "LowCardinality(Nullable(String))"),
    ("_seq", "Nullable(UInt64)"),
    ("_logged_at", TIMESTAMP),
)
"""Where a row came from: log position, index in its envelope, the envelope's identity, the record's time."""


@dataclass(frozen=True)
class Table:
    """One raw table. ``left_out`` names model fields that are not stored as they are, with the reason."""

    name: str
    topic: Topic
    left_out: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[Column, ...] = ()

    @cached_property
    def event_columns(self) -> list[Column]:
        """The columns of the event or row itself."""
        return [*columns_of(self.topic.model, left_out=self.left_out), *self.extra]

    @cached_property
    def column_names(self) -> list[str]:
        """All columns in the order in which rows are inserted."""
        return [name for name, _ in RECORD_COLUMNS] + [column.name for column in self.event_columns]

    @cached_property
    def column_types(self) -> list[str]:
        """ClickHouse types, in the same order."""
        return [kind for _, kind in RECORD_COLUMNS] + [column.type for column in self.event_columns]

    @cached_property
    def clock_field(self) -> str:
        """The field that gives ``ts``: epoch milliseconds."""
        return "as_of_ms" if self.topic.compacted else "at_ms"

    def values(self, event: Any) -> list[Any]:
        """The event's own column values, in order."""
        return [column.get(event) for column in self.event_columns]


def _tenant_residencies(policy: Any) -> dict[str, str]:
    return {tenant.tenant: tenant.residency for tenant in policy.tenants if tenant.residency is not None}


TABLES: tuple[Table, ...] = (
    Table("outcomes_raw", topics.OUTCOMES),
    Table("decisions_raw", topics.DECISIONS),
    Table(
        "telemetry_raw",
        topics.TELEMETRY,
        left_out={
            "latencies": "nested totals; latency percentiles come from outcomes, which are stored whole",
            "lora": "a list that moves with each request; for those that steer now, not for history",
        },
    ),
    Table("instances", topics.INSTANCES),
    Table("regions", topics.REGIONS),
    Table("quotas", topics.QUOTAS),
    Table("leases", topics.LEASES),
    Table("routers", topics.ROUTERS),
    Table(
        "policy_log",
        topics.POLICY,
        left_out={"tenants": "stored as tenant_residencies: digests of API keys stay out of the store"},
        extra=(Column("tenant_residencies", "Map(String, String)", _tenant_residencies),),
    ),
    Table("dead_letters", topics.DEAD),
)
BY_TOPIC: dict[str, Table] = {table.topic.name: table for table in TABLES}
