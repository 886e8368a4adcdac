"""Publication: claims what it owns, then keeps the rows of its pools on the compacted topics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from minds.capacity.folds import Value, instance_key, parse_key, region_key, value_of
from minds.capacity.registers import READING_VALID_MS
from minds.capacity.rows import Member, Stamp, has_left, instance_row, region_row
from schemas.base import Row
from schemas.tables import InstanceRow
from schemas.topics import ENDPOINTS, INSTANCES, LEASES, POLICY, QUOTAS, REGIONS, ROUTERS, Topic
from streams.capacity import CapacityStage
from streams.grants import PoolGrants
from streams.health import Health, Metrics
from streams.interval import rollup_partition
from streams.options import StreamsOptions
from transport.clock import monotonic_ms, now_ms
from transport.producer import RowProducer
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)

OWNED = (INSTANCES, REGIONS, QUOTAS, LEASES)
READ = (ENDPOINTS, POLICY, ROUTERS, *OWNED)
"""What the worker's reader follows: its inputs, and its own topics for what a predecessor left there."""
FLEET_SCOPE = "fleet"
CLAIM_TIMEOUT_S = 10.0
YIELD_EVERY = 20
"""A busy instance's row takes about 0.5 ms to compute: others must get a turn in between."""


@dataclass(slots=True)
class _Shown:
    """An instance's row as last computed for one pool."""

    row: InstanceRow
    value: Value | None
    endpoint_stamp: tuple[int, int]
    check_at_ms: float


@dataclass(slots=True)
class _Owned:
    """One partition under this worker's claims."""

    epochs: dict[str, int]
    version: int = 0
    shown: dict[str, _Shown] = field(default_factory=dict)
    published: dict[str, dict[str, str]] = field(default_factory=dict)
    """Topic to row key to partition key (pool): what a tombstone needs."""
    grants: dict[tuple[str, str], PoolGrants] = field(default_factory=dict)
    all_at_ms: float = 0.0
    granted_at_ms: float = 0.0
    quiet: set[str] = field(default_factory=set)


class Publisher:
    """Writes instance, region, quota and lease rows for the partitions that this worker owns."""

    def __init__(
        self,
        options: StreamsOptions,
        stage: CapacityStage,
        reader: TableReader,
        rows: RowProducer,
        health: Health,
        metrics: Metrics,
    ) -> None:
        self._options = options
        self._stage = stage
        self._reader = reader
        self._rows = rows
        self._metrics = metrics
        self._owned: dict[int, _Owned] = {}
        self._turn = -1
        self._ticked_ms = monotonic_ms()
        health.add("publisher", live=self._stalled, ready=self._not_ready)

    async def run(self) -> None:
        """Publish until cancelled; broker trouble is waited out."""
        while True:
            try:
                await self._tick()
                self._ticked_ms = monotonic_ms()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("rows_not_published", error=repr(error))
            await asyncio.sleep(self._options.publish_ms / 1000.0)

    async def _tick(self) -> None:
        ownership = self._stage.ownership
        if not ownership.recovered or not self._reader.caught_up:
            self._owned = {}
            return
        if ownership.turn != self._turn:
            self._owned, self._turn = {}, ownership.turn
        for partition in sorted(ownership.partitions - set(self._owned)):
            owned = await self._claim(partition)
            if ownership.turn != self._turn:
                return
            self._owned[partition] = owned
        changed, self._stage.changed = self._stage.changed, set()
        for partition, owned in self._owned.items():
            await self._publish(partition, owned, changed)
        await self._rows.flush()

    # --------------------------------------------------------------------------------------------- claims

    async def _claim(self, partition: int) -> _Owned:
        """Claim the partition on each topic, and read them up to the claim: what a predecessor wrote."""
        owned = _Owned({t.name: await self._rows.claim(t, partition, self._options.worker_id) for t in OWNED})
        async with asyncio.timeout(CLAIM_TIMEOUT_S):
            for topic in OWNED:
                await self._read_up_to_claim(topic, partition, owned.epochs[topic.name])
        for topic in OWNED:
            rows = [seen.row for seen in self._reader.view(topic).rows() if seen.partition == partition]
            owned.published[topic.name] = {
                _row_key(topic, row): row.pools[0] if topic is INSTANCES else row.pool for row in rows
            }
        leases = [seen.row for seen in self._reader.view(LEASES).rows() if seen.partition == partition]
        for region, pool in {(row.region, row.pool) for row in leases}:
            self._grants_of(partition, owned, region, pool, leases)
        log.info("partition_claimed", partition=partition, epochs=owned.epochs, leases=len(leases))
        return owned

    async def _read_up_to_claim(self, topic: Topic, partition: int, epoch: int) -> None:
        view = self._reader.view(topic)
        while True:
            seen = view.claim_of(partition)
            if seen is not None and seen >= epoch:
                return
            await asyncio.sleep(0.01)

    def _grants_of(
        self, partition: int, owned: _Owned, region: str, pool: str, leases: list[Any] | None = None
    ) -> PoolGrants:
        grants = owned.grants.get((region, pool))
        if grants is None:
            grants = PoolGrants(region, pool, partition, owned.epochs[QUOTAS.name], owned.epochs[LEASES.name])
            quota = self._reader.view(QUOTAS).row(f"{region}|{pool}")
            last_cap = quota.cap_work_tokens if quota is not None else None
            grants.restore(leases or (), last_cap, self._policy(), monotonic_ms())
            owned.grants[region, pool] = grants
        return grants

    def _policy(self) -> Any | None:
        return self._reader.view(POLICY).row(FLEET_SCOPE)

    # ---------------------------------------------------------------------------------------- publication

    async def _publish(self, partition: int, owned: _Owned, changed: set[str]) -> None:
        now, mono = now_ms(), monotonic_ms()
        everything = mono - owned.all_at_ms >= self._options.heartbeat_ms
        if everything:
            owned.all_at_ms = mono
        members, fresh = await self._members(partition, owned, changed, everything, now)
        home = {
            member.row.instance: member.row
            for (_, pool), group in members.items()
            for member in group
            if member.row is not None and member.row.pools[0] == pool
        }
        for instance, row in home.items():
            if everything or instance_key(row.pools[0], instance) in fresh:
                await self._put(INSTANCES, owned, row, row.pools[0])
        await self._remove_missing(INSTANCES, owned, set(home))
        if mono - owned.granted_at_ms >= self._options.grant_ms:
            owned.granted_at_ms = mono
            await self._grant(partition, owned, members, now, mono)
        touched = {parse_key(key).pool for key in (changed | fresh)}
        for (region, pool), group in members.items():
            if everything or pool in touched:
                await asyncio.sleep(0)
                await self._put(REGIONS, owned, self._region(owned, region, pool, group, now), pool)
        await self._remove_missing(REGIONS, owned, {f"{region}|{pool}" for region, pool in members})

    async def _members(
        self, partition: int, owned: _Owned, changed: set[str], everything: bool, now: int
    ) -> tuple[dict[tuple[str, str], list[Member]], set[str]]:
        """The members of every region and pool of this partition, and the keys whose rows are new."""
        members: dict[tuple[str, str], list[Member]] = {}
        registered: set[str] = set()
        fresh: set[str] = set()
        for seen in list(self._reader.view(ENDPOINTS).rows()):
            endpoint = seen.row
            for pool in endpoint.pools:
                if rollup_partition(pool) != partition:
                    continue
                key = instance_key(pool, endpoint.instance)
                shown = owned.shown.get(key)
                stamp = (endpoint.epoch, endpoint.version)
                if (
                    everything
                    or shown is None
                    or key in changed
                    or shown.endpoint_stamp != stamp
                    or now >= shown.check_at_ms
                ):
                    state = self._stage.state(key)
                    value = value_of(state) if state is not None else None
                    if has_left(endpoint, value, now):
                        owned.shown.pop(key, None)
                        continue
                    owned.version += 1
                    row = instance_row(
                        endpoint, value, Stamp(now, owned.epochs[INSTANCES.name], owned.version)
                    )
                    shown = owned.shown[key] = _Shown(row, value, stamp, _check_at(row, now))
                    fresh.add(key)
                    if len(fresh) % YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                registered.add(key)
                members.setdefault((endpoint.region, pool), []).append(Member(shown.row, shown.value))
        owned.shown = {key: shown for key, shown in owned.shown.items() if key in registered}
        self._add_unregistered(partition, members, registered, now)
        return members, fresh

    def _add_unregistered(
        self,
        partition: int,
        members: dict[tuple[str, str], list[Member]],
        registered: set[str],
        now: int,
    ) -> None:
        """Outcomes of instances that are gone, and of regions without any: they happened all the same."""
        for pool in self._stage.pools():
            if rollup_partition(pool) != partition:
                continue
            for key in self._stage.keys_of(pool) - registered:
                state = self._stage.state(key)
                if state is None:
                    continue
                parsed = parse_key(key)
                if parsed.kind == "r":
                    members.setdefault((parsed.name, pool), [])
                elif (value := value_of(state)).rings and value.region is not None:
                    members.setdefault((value.region, pool), []).append(Member(None, value))

    def _region(self, owned: _Owned, region: str, pool: str, group: list[Member], now: int) -> Row:
        owned.version += 1
        shed = self._stage.state(region_key(region, pool))
        grants = owned.grants.get((region, pool))
        return region_row(
            region,
            pool,
            group,
            value_of(shed) if shed is not None else None,
            grants.figures if grants is not None else None,
            Stamp(now, owned.epochs[REGIONS.name], owned.version),
        )

    async def _grant(
        self,
        partition: int,
        owned: _Owned,
        members: dict[tuple[str, str], list[Member]],
        now: int,
        mono: float,
    ) -> None:
        policy = self._policy()
        view = self._reader.view(ROUTERS)
        routers = [row for _, row, quality in view.items(now) if quality != "unknown"]
        serving = {place for place, group in members.items() if any(m.row is not None for m in group)}
        wanted: set[str] = set()
        for region, pool in sorted(serving | set(owned.grants)):
            grants = self._grants_of(partition, owned, region, pool)
            states = [m.row.state for m in members.get((region, pool), ()) if m.row is not None]
            granted = grants.tick(policy, states, routers, now, mono)
            wanted.add(granted.quota.key())
            await self._put(QUOTAS, owned, granted.quota, pool)
            for lease in granted.leases:
                await self._put(LEASES, owned, lease, pool)
            for key, version in granted.gone:
                await self._tombstone(LEASES, owned, key, version)
        await self._remove_missing(QUOTAS, owned, wanted)

    async def _put(self, topic: Topic, owned: _Owned, row: Row, pool: str) -> None:
        owned.published.setdefault(topic.name, {})[row.key()] = pool
        await self._rows.put(topic, row, partition_key=pool)
        self._metrics.rows.labels(topic.name).inc()

    async def _remove_missing(self, topic: Topic, owned: _Owned, wanted: set[str]) -> None:
        for key in [key for key in owned.published.get(topic.name, {}) if key not in wanted]:
            owned.version += 1
            await self._tombstone(topic, owned, key, owned.version)

    async def _tombstone(self, topic: Topic, owned: _Owned, key: str, version: int) -> None:
        pool = owned.published.get(topic.name, {}).pop(key, None)
        if pool is not None:
            epoch = owned.epochs[topic.name]
            await self._rows.remove(topic, key, partition_key=pool, epoch=epoch, version=version)

    # --------------------------------------------------------------------------------------------- health

    def _stalled(self) -> str | None:
        silent_ms = monotonic_ms() - self._ticked_ms
        if silent_ms > self._options.stall_ms:
            return f"No rows could be published for {silent_ms / 1000:.0f} s."
        return None

    def _not_ready(self) -> str | None:
        ownership = self._stage.ownership
        if not self._reader.caught_up:
            return "The tables of endpoints, policy and routers are not read yet."
        if not ownership.recovered:
            return "The capacity tables are not recovered from their changelogs yet."
        if missing := ownership.partitions - set(self._owned):
            return f"Partitions {sorted(missing)} are not claimed yet."
        return None


def _row_key(topic: Topic, row: Any) -> str:
    if topic is INSTANCES:
        return str(row.instance)
    if topic is LEASES:
        return f"{row.region}|{row.pool}|{row.service_class}|{row.holder}"
    return f"{row.region}|{row.pool}"


def _check_at(row: InstanceRow, now: int) -> float:
    """When the row's state may change by age alone."""
    if row.sampled_at_ms is None:
        return float("inf")
    ages = (row.sampled_at_ms + READING_VALID_MS, row.sampled_at_ms + 2 * READING_VALID_MS)
    return min((at for at in ages if at >= now), default=float("inf"))
