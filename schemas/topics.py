"""The topic registry: each topic once, with its keys, its retention, and who writes and reads it.

Creation, ACLs and AsyncAPI derive from it. The *record key* names what a record is (and what compaction
keeps); the *partition key* says which partition it goes to. They differ: rows are named by their own id but
partitioned by pool, so that all of a pool lies with one owner.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from schemas.base import Event, Row, header_of
from schemas.caches import KvEvent, Placement
from schemas.decisions import Decision
from schemas.endpoints import EndpointRow
from schemas.envelopes import envelope_header
from schemas.gpus import GpuSample
from schemas.grants import LeaseRow, QuotaRow
from schemas.network import LinkProbe
from schemas.operations import AlertRow, Claim, DeadLetter, Rollup
from schemas.outcomes import Outcome
from schemas.policy import PolicyRow
from schemas.routers import RouterRow
from schemas.steering import PlanRow, SpillRow
from schemas.tables import InstanceRow, RegionRow
from schemas.telemetry import Telemetry

Kind = Literal["raw", "compacted", "internal"]
Component = Literal["source", "router", "streams", "sink", "operator", "tool"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_RECORD_BYTES = 4 * 1024 * 1024
POOL_PARTITIONS_VARIABLE = "TOKENFLEET_POOL_PARTITIONS"


def _pool_partitions(said: str) -> int:
    if not said.isdecimal() or not 1 <= int(said) <= 1_000:
        raise ValueError(f"{POOL_PARTITIONS_VARIABLE} is {said!r}; it takes a whole number from 1 to 1000.")
    return int(said)


POOL_PARTITIONS = _pool_partitions(os.environ.get(POOL_PARTITIONS_VARIABLE, "4"))
"""Of the topics that are partitioned by pool: how many streams workers can own pools. All services of a fleet
must agree on it; docs/operations/streams.md says how to change it."""


@dataclass(frozen=True)
class Topic:
    """One topic. ``partitions`` is for a new cluster; ``retention_ms`` is None where compacted."""

    name: str
    model: type[Event] | type[Row]
    kind: Kind
    record_key: str
    partition_key: str
    writers: tuple[Component, ...]
    readers: tuple[Component, ...]
    about: str
    partitions: int = 4
    retention_ms: int | None = None
    claimed: bool = False
    """Rows are owned partition by partition: the owner writes claim records, rows carry its epoch."""

    @property
    def compacted(self) -> bool:
        return self.kind == "compacted"

    @property
    def enveloped(self) -> bool:
        """Raw topics take envelopes (and single events from others)."""
        return self.kind == "raw"

    @property
    def headers(self) -> tuple[str, ...]:
        """The ``schema`` headers that records of this topic may carry, the usual one first."""
        if self.enveloped and issubclass(self.model, Event):
            return (envelope_header(self.model), header_of(self.model))
        if self.claimed:
            return (header_of(self.model), header_of(Claim))
        return (header_of(self.model),)

    def config(self) -> dict[str, str]:
        """Kafka's topic settings, as strings."""
        config = {"max.message.bytes": str(MAX_RECORD_BYTES)}
        if self.compacted:
            config |= {
                "cleanup.policy": "compact",
                "segment.ms": str(HOUR_MS),
                "min.cleanable.dirty.ratio": "0.2",
                "delete.retention.ms": str(DAY_MS),
            }
        else:
            config |= {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms or DAY_MS)}
        if self.kind == "raw":
            # The broker's clock, not the producer's: a host whose whole clock is off is then found out.
            config["message.timestamp.type"] = "LogAppendTime"
        return config


def _raw(
    name: str,
    model: type[Event],
    writers: tuple[Component, ...],
    about: str,
    retention_ms: int,
    readers: tuple[Component, ...] = ("streams", "sink"),
) -> Topic:
    return Topic(name, model, "raw", "producer", "producer", writers, readers, about, 4, retention_ms)


def _rows(
    name: str,
    model: type[Row],
    record_key: str,
    partition_key: str,
    writers: tuple[Component, ...],
    about: str,
    partitions: int = POOL_PARTITIONS,
    readers: tuple[Component, ...] = ("router", "sink"),
) -> Topic:
    claimed = writers == ("streams",)
    return Topic(
        name,
        model,
        "compacted",
        record_key,
        partition_key,
        writers,
        readers,
        about,
        partitions,
        None,
        claimed,
    )


TELEMETRY = _raw("fleet.telemetry", Telemetry, ("source",), "What engines say of themselves.", DAY_MS)
LINKS = _raw("fleet.links", LinkProbe, ("source",), "Probes between regions.", DAY_MS)
GPUS = _raw("fleet.gpus", GpuSample, ("source",), "How accelerators are.", DAY_MS)
OUTCOMES = _raw("fleet.outcomes", Outcome, ("router", "streams"), "How each attempt ended.", 7 * DAY_MS)
DECISIONS = _raw("fleet.decisions", Decision, ("router",), "What routers decided.", 7 * DAY_MS)
PLACEMENTS = _raw(
    "fleet.placements", Placement, ("router",), "Where prefixes went.", 2 * HOUR_MS, ("router", "streams")
)
KV = _raw("fleet.kv", KvEvent, ("source",), "What engines cache.", 2 * HOUR_MS, ("router", "streams"))

ENDPOINTS = _rows(
    "fleet.endpoints",
    EndpointRow,
    "instance",
    "pools[0]",
    ("source",),
    "The registry of engines.",
    partitions=4,
    readers=("streams", "router", "sink"),
)
INSTANCES = _rows("fleet.instances", InstanceRow, "instance", "pools[0]", ("streams",), "Instance table.")
REGIONS = _rows("fleet.regions", RegionRow, "region|pool", "pool", ("streams",), "Region table.")
QUOTAS = _rows("fleet.quotas", QuotaRow, "region|pool", "pool", ("streams",), "Caps, divided by class.")
LEASES = _rows("fleet.leases", LeaseRow, "region|pool|class|holder", "pool", ("streams",), "Rights to admit.")
SPILL = _rows(
    "fleet.spill", SpillRow, "entry|pool|residency", "pool", ("streams",), "Where entry traffic goes."
)
PLAN = _rows("fleet.plan", PlanRow, "region|pool", "pool", ("streams",), "Replicas wanted.")
POLICY = _rows(
    "fleet.policy",
    PolicyRow,
    "scope",
    "scope",
    ("operator",),
    "What operators decided.",
    partitions=1,
    readers=("streams", "router", "sink"),
)
ROUTERS = _rows(
    "fleet.routers",
    RouterRow,
    "router",
    "router",
    ("router",),
    "Heartbeats and demand of routers.",
    partitions=1,
    readers=("streams", "sink"),
)
ALERTS = _rows(
    "fleet.alerts",
    AlertRow,
    "alert_id",
    "alert_id",
    ("streams", "sink", "source"),
    "For people.",
    partitions=4,
)

DEAD = Topic(
    "fleet.dead",
    DeadLetter,
    "internal",
    "origin_topic",
    "origin_topic",
    ("streams", "sink", "router", "source"),
    ("sink", "tool"),
    "Records that could not be used: origin, reason and digest.",
    1,
    14 * DAY_MS,
)
ROLLUPS = Topic(
    "fleet.rollups",
    Rollup,
    "internal",
    "combiner",
    "pool",
    ("streams",),
    ("streams",),
    "Stage one's partials, one record a flush and partition of pools.",
    POOL_PARTITIONS,
    DAY_MS,
)
CLAIMS = Topic(
    "fleet.claims",
    Claim,
    "internal",
    "source partition",
    "source partition",
    ("streams",),
    ("tool",),
    "A combiner takes over a source partition; the offset is its generation.",
    1,
    DAY_MS,
)

TOPICS: tuple[Topic, ...] = (
    TELEMETRY,
    LINKS,
    GPUS,
    OUTCOMES,
    DECISIONS,
    PLACEMENTS,
    KV,
    ENDPOINTS,
    INSTANCES,
    REGIONS,
    QUOTAS,
    LEASES,
    SPILL,
    PLAN,
    POLICY,
    ROUTERS,
    ALERTS,
    DEAD,
    ROLLUPS,
    CLAIMS,
)
BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}


def topic(name: str) -> Topic:
    """The topic of this name; an unknown one is a KeyError that lists those there are."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise KeyError(
            f"There is no topic {name!r}; the registry has {', '.join(sorted(BY_NAME))}."
        ) from None
