"""Publication: claims what it owns, then keeps the rows of its pools on the compacted topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import structlog
from aiokafka.errors import KafkaError

from minds.capacity.folds import instance_key, parse_key, region_key
from minds.capacity.gpu_health import GpuTable
from minds.capacity.links import Links
from minds.capacity.live import Live, read_shapes
from minds.capacity.rows import Stamp, has_left, heard_at_ms, instance_row, region_row
from minds.rows import Change
from schemas.base import Row
from schemas.fastpath import encode
from schemas.operations import AlertRow
from schemas.topics import ALERTS, ENDPOINTS, INSTANCES, LEASES, POLICY, QUOTAS, REGIONS, ROUTERS, Topic
from streams.capacity import CapacityStage
from streams.event_tail import EventTail
from streams.grants import PoolGrants
from streams.health import Health, Metrics
from streams.interval import rollup_partition
from streams.options import StreamsOptions
from streams.row_batches import MOST_UNDER_WAY, RowBatches, keys_before
from streams.row_text import RowText, numbers_of, row_text, told_by
from streams.shown import Owned, Place, ShownInstance, due_of
from transport.clock import monotonic_ms, now_ms
from transport.producer import RowProducer
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)

OWNED = (INSTANCES, REGIONS, QUOTAS, LEASES)
READ = (ENDPOINTS, POLICY, ROUTERS, QUOTAS, LEASES)
"""What the worker's reader follows: its inputs, and the grants that a predecessor left. Its own instance and
region rows come too fast for that: their keys are read once at a claim."""
FLEET_SCOPE = "fleet"
CLAIM_TIMEOUT_S = 20.0
MOST_SHAPES = 32
"""Of how many busy keys of a partition percentiles are read again at one publication: the keys of a source
merge together, and the next publication is near."""
YIELD_EVERY = 50
"""Rows between two turns for others."""
IDLE_S = 0.25
DUE_S = 0.05
"""What is due by the clock may wait so long: in a large fleet something always is, and publications cost."""
TIDY_EVERY_MS = 30_000.0
"""How often what links and GPUs have not repeated is forgotten, and the list of regions made anew."""


class _Counted(NamedTuple):
    """An instance of which only counts and percentiles may be new."""

    key: str
    lane: int
    shown: ShownInstance
    text: RowText


class Publisher:
    """Writes instance, region, quota and lease rows for the partitions that this worker owns.

    Driven by what changed and by a queue of times, never by walking all that is known: an instance is looked
    at when a rollup or its registry row changed, and when its row is due.
    """

    def __init__(
        self,
        options: StreamsOptions,
        stage: CapacityStage,
        reader: TableReader,
        tail: EventTail,
        links: Links,
        gpus: GpuTable,
        rows: RowProducer,
        batches: RowBatches,
        health: Health,
        metrics: Metrics,
    ) -> None:
        self._options = options
        self._stage = stage
        self._reader = reader
        self._tail = tail
        self._links = links
        self._gpus = gpus
        self._places: frozenset[str] = frozenset()
        self._tidied_ms = float("-inf")
        self._rows = rows
        self._batches = batches
        self._counts = {topic.name: metrics.rows.labels(topic.name) for topic in OWNED}
        self._owned: dict[int, Owned] = {}
        self._turn = -1
        self._registry: set[str] = set()
        self._alerts: list[AlertRow] = []
        self._pools: dict[str, tuple[str, ...]] = {}
        self._ticked_ms = monotonic_ms()
        health.add("publisher", live=self._stalled, ready=self._not_ready)

    def on_change(self, topic: Topic, change: Change) -> None:
        """The reader's word that a row changed."""
        if topic is ENDPOINTS and change.kind != "claimed":
            self._registry.add(change.key)
            self._stage.wake.set()

    async def run(self) -> None:
        """Publish until cancelled; broker trouble is waited out."""
        while True:
            try:
                await self._tick()
                self._ticked_ms = monotonic_ms()
            except (KafkaError, OSError, TimeoutError) as error:
                # Which rows arrived is unknown: claim anew, and publish all.
                log.warning("rows_not_published", error=repr(error))
                self._owned = {}
                self._batches.drop()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes as the event is set.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s()):
                    await self._stage.wake.wait()
            await asyncio.sleep(self._options.publish_ms / 1000.0)

    def _idle_s(self) -> float:
        due_ms = min([owned.next_due_ms() for owned in self._owned.values()], default=float("inf"))
        return max(DUE_S, min(IDLE_S, (due_ms - now_ms()) / 1000.0))

    async def _tick(self) -> None:
        self._stage.wake.clear()
        ownership = self._stage.ownership
        if not ownership.recovered or not self._reader.caught_up or not self._tail.caught_up:
            self._owned = {}
            return
        if ownership.turn != self._turn:
            self._owned, self._turn = {}, ownership.turn
        for partition in sorted(ownership.partitions - set(self._owned)):
            owned = await self._claim(partition)
            if ownership.turn != self._turn:
                return
            self._owned[partition] = owned
        self._tidy()
        table = self._stage.table
        changed, table.changed = table.changed, set()
        counted, table.counted = table.counted, {}
        registry, self._registry = self._registry, set()
        self._recount(counted, changed)
        await self._instances(changed, registry)
        for partition, owned in self._owned.items():
            now, mono = now_ms(), monotonic_ms()
            if mono - owned.granted_at_ms >= self._options.grant_ms:
                owned.granted_at_ms = mono
                await self._grant(partition, owned, now, mono)
            self._regions(partition, owned, now)
        alerts, self._alerts = self._alerts, []
        for alert in alerts:
            log.warning("instance_quarantine", state=alert.state, instance=alert.subject, why=alert.summary)
            await self._rows.put(ALERTS, alert, partition_key=alert.alert_id)
        await self._batches.settled(MOST_UNDER_WAY)
        if self._batches.waiting:
            for name, rows in (await self._batches.send()).items():
                self._counts[name].inc(rows)

    def _tidy(self) -> None:
        if monotonic_ms() - self._tidied_ms < TIDY_EVERY_MS:
            return
        self._tidied_ms = monotonic_ms()
        self._links.forget_old(now_ms())
        self._gpus.forget_old(now_ms())
        self._places = frozenset(seen.row.region for seen in self._reader.view(ENDPOINTS).rows())

    # --------------------------------------------------------------------------------------------- claims

    async def _claim(self, partition: int) -> Owned:
        """Claim the partition on each topic, and learn what a predecessor left there."""
        owned = Owned({t.name: await self._rows.claim(t, partition, self._options.worker_id) for t in OWNED})
        async with asyncio.timeout(CLAIM_TIMEOUT_S):
            for topic in (INSTANCES, REGIONS):
                claim = owned.epochs[topic.name]
                owned.published[topic.name] = await keys_before(
                    self._options.bootstrap, topic, partition, claim
                )
            for topic in (QUOTAS, LEASES):
                await self._read_up_to_claim(topic, partition, owned.epochs[topic.name])
                rows = [seen.row for seen in self._reader.view(topic).rows() if seen.partition == partition]
                owned.published[topic.name] = {_grant_key(topic, row) for row in rows}
        leases = [seen.row for seen in self._reader.view(LEASES).rows() if seen.partition == partition]
        for region, pool in {(row.region, row.pool) for row in leases}:
            self._grants_of(partition, owned, (region, pool), leases)
        await self._first_rows(partition, owned)
        log.info("partition_claimed", partition=partition, epochs=owned.epochs, leases=len(leases))
        return owned

    async def _read_up_to_claim(self, topic: Topic, partition: int, epoch: int) -> None:
        view = self._reader.view(topic)
        while True:
            seen = view.claim_of(partition)
            if seen is not None and seen >= epoch:
                return
            await asyncio.sleep(0.01)

    async def _first_rows(self, partition: int, owned: Owned) -> None:
        """All rows of the partition, and tombstones for those that have no instance or region any more."""
        made = 0
        for seen in list(self._reader.view(ENDPOINTS).rows()):
            endpoint = seen.row
            self._pools[endpoint.instance] = tuple(endpoint.pools)
            for pool in endpoint.pools:
                if rollup_partition(pool) == partition:
                    self._refresh(partition, owned, endpoint, pool, now_ms())
                    made += 1
                    if made % YIELD_EVERY == 0:
                        await asyncio.sleep(0)
        for pool in self._stage.pools():
            if rollup_partition(pool) == partition:
                for key in self._stage.keys_of(pool):
                    parsed = parse_key(key)
                    if parsed.kind == "r":
                        owned.region((parsed.name, pool))
        homes = {
            shown.row.instance
            for key, shown in owned.instances.items()
            if shown.row.pools[0] == parse_key(key).pool
        }
        self._remove_missing(partition, owned, INSTANCES, homes)
        self._remove_missing(partition, owned, REGIONS, {f"{r}|{p}" for r, p in owned.regions})

    # ------------------------------------------------------------------------------------------ instances

    def _recount(self, counted: dict[int, dict[str, Live]], changed: set[str]) -> None:
        """Publish rows of which only counts and percentiles are new; those that are to be made from their
        parts are added to ``changed``."""
        now = now_ms()
        for partition, lives in counted.items():
            owned = self._owned.get(partition)
            if owned is None:
                continue
            found: list[_Counted] = []
            due: list[tuple[Live, RowText]] = []
            for key, live in lives.items():
                shown = owned.instances.get(key)
                if (
                    shown is None
                    or (text := shown.text) is None
                    or now > text.until_ms
                    or text.is_quiet
                    or live.lane < 0
                    or key in changed
                ):
                    changed.add(key)
                    continue
                found.append(_Counted(key, live.lane, shown, text))
                if len(due) < MOST_SHAPES and live.shapes_due(now):
                    due.append((live, text))
            if due:
                read_shapes([live for live, _ in due], now)
                for live, text in due:
                    text.tell_shapes(live.shapes)
            if found:
                self._count_anew(partition, owned, now, found, changed)

    def _count_anew(
        self, partition: int, owned: Owned, now: int, found: list[_Counted], changed: set[str]
    ) -> None:
        counts, sound = self._stage.table.counts([each.lane for each in found], now)
        tells = np.array([each.text.told for each in found], np.int64)
        fits = sound & (told_by(counts) & ~tells == 0)
        keys, templates, rows = [], [], []
        for row, ((key, _, shown, text), fit) in enumerate(zip(found, fits.tolist(), strict=True)):
            if not fit:
                changed.add(key)
                continue
            shown.published_ms = now
            if text.key is not None:
                keys.append(text.key)
                templates.append(text.template)
                rows.append(row)
        if keys:
            numbers = numbers_of(now, owned.version, counts if len(rows) == len(found) else counts[rows])
            owned.version += len(keys)
            self._batches.put_all(INSTANCES, partition, keys, templates, numbers)

    async def _instances(self, changed: set[str], registry: set[str]) -> None:
        """Make the rows again of what changed and of what is due."""
        wanted: list[tuple[int, str, str]] = []
        for key in changed:
            parsed = parse_key(key)
            partition = rollup_partition(parsed.pool)
            owned = self._owned.get(partition)
            if owned is None:
                continue
            if parsed.kind == "r":
                owned.region((parsed.name, parsed.pool)).touched = True
            else:
                wanted.append((partition, parsed.pool, parsed.name))
        for instance in registry:
            endpoint = self._reader.view(ENDPOINTS).row(instance)
            pools = tuple(endpoint.pools) if endpoint is not None else ()
            for pool in {*pools, *self._pools.get(instance, ())}:
                wanted.append((rollup_partition(pool), pool, instance))
            if pools:
                self._pools[instance] = pools
            else:
                self._pools.pop(instance, None)
        now = now_ms()
        for partition, owned in self._owned.items():
            for key in owned.due(now):
                parsed = parse_key(key)
                wanted.append((partition, parsed.pool, parsed.name))
        view = self._reader.view(ENDPOINTS)
        for made, (partition, pool, instance) in enumerate(wanted, 1):
            owned = self._owned.get(partition)
            if owned is not None:
                endpoint = view.row(instance)
                if endpoint is not None and pool in endpoint.pools:
                    self._refresh(partition, owned, endpoint, pool, now)
                else:
                    self._drop(partition, owned, pool, instance)
            if made % YIELD_EVERY == 0:
                await asyncio.sleep(0)
                if self._stage.ownership.turn != self._turn:
                    return

    def _refresh(self, partition: int, owned: Owned, endpoint: Any, pool: str, now: int) -> None:
        key = instance_key(pool, endpoint.instance)
        live = self._stage.state(key)
        heard_ms = heard_at_ms(endpoint, live)
        if has_left(heard_ms, now):
            self._drop(partition, owned, pool, endpoint.instance)
            return
        owned.version += 1
        row = instance_row(
            endpoint, live, Stamp(now, owned.epochs[INSTANCES.name], owned.version), self._gpus
        )
        options = self._options
        due = due_of(row, heard_ms, now, options.heartbeat_ms, options.quiet_heartbeat_ms)
        value = encode(row)
        knee = live.knee_tokens_per_s if live is not None else None
        text = row_text(row, value, live, pool, now) if live is not None and live.lane >= 0 else None
        owned.show(key, row, (endpoint.region, pool), due, now, knee, text)
        if pool == endpoint.pools[0]:
            said = live.quarantined(now) if live is not None else None
            if (alert := owned.alerts.note(endpoint.instance, said, now)) is not None:
                self._alerts.append(alert)
            self._put(partition, owned, INSTANCES, endpoint.instance, value)

    def _drop(self, partition: int, owned: Owned, pool: str, instance: str) -> None:
        shown = owned.instances.get(instance_key(pool, instance))
        if shown is None:
            return
        owned.drop(instance_key(pool, instance))
        if shown.row.pools[0] == pool:
            self._remove(partition, owned, INSTANCES, instance)

    # ------------------------------------------------------------------------------- regions and grants

    def _regions(self, partition: int, owned: Owned, now: int) -> None:
        for (region, pool), shown in list(owned.regions.items()):
            if not shown.touched and now < shown.due_ms:
                continue
            live = self._stage.state(region_key(region, pool))
            if live is None and not shown.rows and (region, pool) not in owned.grants:
                del owned.regions[region, pool]
                self._remove(partition, owned, REGIONS, f"{region}|{pool}")
                continue
            owned.version += 1
            grants = owned.grants.get((region, pool))
            row = region_row(
                region,
                pool,
                shown.sums(now, self._options.members_ms),
                live,
                grants.figures if grants is not None else None,
                Stamp(now, owned.epochs[REGIONS.name], owned.version),
                self._links.links_of(region, self._places, now),
            )
            shown.touched = False
            wait_ms = self._options.members_ms if shown.stale else self._options.heartbeat_ms
            shown.due_ms = now + wait_ms
            self._put(partition, owned, REGIONS, f"{region}|{pool}", encode(row))

    def _grants_of(
        self, partition: int, owned: Owned, place: Place, leases: Iterable[Any] | None = None
    ) -> PoolGrants:
        grants = owned.grants.get(place)
        if grants is None:
            region, pool = place
            grants = PoolGrants(region, pool, partition, owned.epochs[QUOTAS.name], owned.epochs[LEASES.name])
            quota = self._reader.view(QUOTAS).row(f"{region}|{pool}")
            last_cap = quota.cap_work_tokens if quota is not None else None
            grants.restore(leases or (), last_cap, self._policy(), monotonic_ms())
            owned.grants[place] = grants
        return grants

    def _policy(self) -> Any | None:
        return self._reader.view(POLICY).row(FLEET_SCOPE)

    async def _grant(self, partition: int, owned: Owned, now: int, mono: float) -> None:
        policy = self._policy()
        view = self._reader.view(ROUTERS)
        routers = [row for _, row, quality in view.items(now) if quality != "unknown"]
        serving = {place for place, shown in owned.regions.items() if shown.rows}
        wanted: set[str] = set()
        for place in sorted(serving | set(owned.grants)):
            grants = self._grants_of(partition, owned, place)
            shown = owned.regions.get(place)
            states = [row.state for row in shown.rows.values()] if shown is not None else []
            granted = grants.tick(policy, states, routers, now, mono)
            wanted.add(granted.quota.key())
            await self._put_row(QUOTAS, owned, granted.quota, place[1])
            for lease in granted.leases:
                await self._put_row(LEASES, owned, lease, place[1])
            for key, version in granted.gone:
                self._remove(partition, owned, LEASES, key, version)
        self._remove_missing(partition, owned, QUOTAS, wanted)

    # ------------------------------------------------------------------------------------------- the log

    def _put(self, partition: int, owned: Owned, topic: Topic, key: str, value: bytes) -> None:
        owned.published.setdefault(topic.name, set()).add(key)
        self._batches.put(topic, partition, key, value)

    async def _put_row(self, topic: Topic, owned: Owned, row: Row, pool: str) -> None:
        owned.published.setdefault(topic.name, set()).add(row.key())
        await self._rows.put(topic, row, partition_key=pool)
        self._counts[topic.name].inc()

    def _remove(
        self, partition: int, owned: Owned, topic: Topic, key: str, version: int | None = None
    ) -> None:
        published = owned.published.get(topic.name, set())
        if key in published:
            published.discard(key)
            if version is None:
                owned.version += 1
                version = owned.version
            self._batches.remove(topic, partition, key, owned.epochs[topic.name], version)

    def _remove_missing(self, partition: int, owned: Owned, topic: Topic, wanted: set[str]) -> None:
        for key in owned.published.get(topic.name, set()) - wanted:
            self._remove(partition, owned, topic, key)

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
        if not self._tail.caught_up:
            return "The last minutes of links and GPUs are not read yet."
        if not ownership.recovered:
            return "The capacity tables are not recovered from their changelogs yet."
        if missing := ownership.partitions - set(self._owned):
            return f"Partitions {sorted(missing)} are not claimed yet."
        return None


def _grant_key(topic: Topic, row: Any) -> str:
    if topic is LEASES:
        return f"{row.region}|{row.pool}|{row.service_class}|{row.holder}"
    return f"{row.region}|{row.pool}"
