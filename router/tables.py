"""The router's view of the compacted tables: candidates of each pool, kept ready between requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minds.fleetmind.suspects import Suspects
from minds.policy import CompiledPolicy
from minds.rows import Change, RowView
from minds.tokenpilot.least_outstanding import InstanceLoad, trust_of
from schemas.topics import (
    ENDPOINTS,
    INSTANCES,
    LEASES,
    POLICY,
    QUOTAS,
    REGIONS,
    ROUTERS,
    Topic,
)
from transport.clock import now_ms

TABLES: tuple[Topic, ...] = (ENDPOINTS, INSTANCES, REGIONS, QUOTAS, LEASES, ROUTERS, POLICY)
POLICY_SCOPE = "fleet"
_OUT_STATES = ("draining", "unreachable")


@dataclass(slots=True, eq=False)
class Member:
    """One endpoint as the router uses it. ``load`` lives as long as the instance's boot."""

    row: Any
    load: InstanceLoad

    @property
    def instance(self) -> str:
        return str(self.row.instance)

    @property
    def boot(self) -> str:
        return str(self.row.boot)

    @property
    def region(self) -> str:
        return str(self.row.region)


class FleetTables:
    """Takes the changes of a TableReader (``on_change``) and answers what a decision needs.

    ``on_lease`` is called with each lease row; ``changed`` after each change that can make room.
    """

    def __init__(self, *, endpoint_horizon_ms: float = 300_000.0) -> None:
        self.views: Mapping[str, RowView] = {topic.name: RowView(topic) for topic in TABLES}
        self.policy = CompiledPolicy(None)
        self.suspects = Suspects()
        self.on_lease: Callable[[Any], None] = lambda row: None
        self._horizon_ms = endpoint_horizon_ms
        self._members: dict[str, Member] = {}
        self._loads: dict[str, InstanceLoad] = {}
        self._pools: dict[str, dict[str, Member]] = {}

    def attach(self, views: Mapping[str, RowView]) -> None:
        """Use the views of this reader; call it before the reader starts."""
        self.views = views

    def on_change(self, topic: Topic, change: Change) -> None:
        """Take one change of a table."""
        if topic is ENDPOINTS:
            if change.kind == "put":
                self._put_endpoint(change.row)
            elif change.kind == "removed":
                self._remove_endpoint(change.key)
        elif topic is INSTANCES and change.kind == "put":
            self._observe(change.row)
        elif topic is LEASES and change.kind == "put":
            self.on_lease(change.row)
        elif topic is POLICY and change.kind != "claimed":
            self.policy = CompiledPolicy(self.views[POLICY.name].row(POLICY_SCOPE))

    def members(self, pool: str) -> Iterable[Member]:
        """All known endpoints of a pool."""
        return self._pools.get(pool, {}).values()

    def regions_of(self, pool: str) -> set[str]:
        """The regions where the pool has known endpoints."""
        return {member.region for member in self.members(pool)}

    def ready_endpoints(self, at_ms: int) -> dict[str, int]:
        """Each known pool and how many of its endpoints are ready."""
        return {
            pool: sum(self.not_ready(member, at_ms) is None for member in members.values())
            for pool, members in self._pools.items()
        }

    def not_ready(self, member: Member, at_ms: int, *, silent: bool = False) -> str | None:
        """Why this endpoint can't take work, or None.

        Nothing is excluded because a figure is unknown; only an endpoint that its source has not mentioned
        for long, while the tables themselves are current (not ``silent``), is taken for gone.
        """
        row = member.row
        if not row.reachable:
            return "readiness: its source can't reach it"
        if row.draining:
            return "readiness: it is draining"
        if not silent and at_ms - row.as_of_ms > max(self._horizon_ms, 2 * row.valid_for_ms):
            return "readiness: its source has not mentioned it for minutes"
        seen = self.views[INSTANCES.name].get(member.instance, at_ms)
        if (
            seen is not None
            and seen[1] != "unknown"
            and seen[0].boot == row.boot
            and seen[0].state in _OUT_STATES
        ):
            return f"readiness: the instance table says {seen[0].state}"
        return None

    def trust(self, member: Member, at_ms: int) -> float:
        """The weight of the instance's reading now, 0 where it is unknown or fenced."""
        sampled_at_ms = member.load.sampled_at_ms
        seen = self.views[INSTANCES.name].get(member.instance, at_ms)
        if sampled_at_ms is None or seen is None or seen[1] == "unknown":
            return 0.0
        return trust_of(at_ms - sampled_at_ms, seen[0].valid_for_ms)

    def _put_endpoint(self, row: Any) -> None:
        load = self._loads.get(row.instance)
        if load is None or load.boot != row.boot or load.region != row.region:
            load = self._loads[row.instance] = InstanceLoad(row.instance, row.boot, row.region)
        old = self._members.get(row.instance)
        member = self._members[row.instance] = Member(row, load)
        for pool in old.row.pools if old is not None else ():
            if pool not in row.pools:
                self._leave(pool, row.instance)
        for pool in row.pools:
            self._pools.setdefault(pool, {})[row.instance] = member
        if (figures := self.views[INSTANCES.name].row(row.instance)) is not None:
            self._observe(figures)

    def _remove_endpoint(self, instance: str) -> None:
        member = self._members.pop(instance, None)
        if member is None:
            return
        for pool in member.row.pools:
            self._leave(pool, instance)
        self.suspects.forget(instance)
        if member.load.in_flight == 0:
            self._loads.pop(instance, None)

    def _leave(self, pool: str, instance: str) -> None:
        members = self._pools.get(pool, {})
        members.pop(instance, None)
        if not members:
            self._pools.pop(pool, None)

    def _observe(self, row: Any) -> None:
        load = self._loads.get(row.instance)
        if load is None or load.boot != row.boot:
            return
        running, waiting = row.gauges.requests_running.value, row.gauges.requests_waiting.value
        known = running is not None and waiting is not None
        load.observe(running + waiting if known else None, row.sampled_at_ms, now_ms())
