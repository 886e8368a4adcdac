"""Stage two: applies rollups to the tables ``instances`` and ``regions`` by the merge rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import faust
import msgspec
import structlog

from minds.capacity.folds import FORMAT, State, decode_state, encode_state, parse_key
from minds.capacity.live import Live
from minds.capacity.table import CapacityTable
from schemas.codec import Refused
from schemas.topics import ROLLUPS
from streams.contiguous import Contiguous
from streams.faust_tables import BatchedTable, Ownership, Settler, Write, raw_table, stateful_agent
from streams.health import Health, Metrics
from streams.interval import rollup_partition
from streams.rollups import decode_partials
from transport.clock import now_ms
from transport.dead_letters import DeadLetterWriter, TooManyDeadLetters

log = structlog.get_logger(__name__)

TABLES = (f"instances-v{FORMAT}", f"regions-v{FORMAT}")
UPTO = "o|"
"""Keys of the first table that hold no state, but a partition's next rollup: all before it is stored."""
IDLE_LEAVES_MS = 15 * 60_000
"""A key of which nothing came for so long is forgotten: three times the longest window."""


class CapacityStage:
    """The states of all keys of the owned partitions, decoded; the Faust tables hold their stored form."""

    def __init__(
        self, app: faust.App, dead_letters: DeadLetterWriter, health: Health, metrics: Metrics
    ) -> None:
        self._dead = dead_letters
        self._health = health
        self._metrics = metrics
        self._tables = {name: raw_table(app, name, ROLLUPS) for name in TABLES}
        self.table = CapacityTable()
        self._by_pool: dict[str, set[str]] = {}
        self._order = Contiguous(app, ROLLUPS.name)
        self.wake = asyncio.Event()
        """Set whenever anything changed."""
        self.settler = Settler(self._collect)
        self.ownership = Ownership(app, ROLLUPS.name)
        for table in self._tables.values():
            self.ownership.follow(table, self._loader(table), self._lost)
        stateful_agent(app, ROLLUPS.name, self._apply_all, health)

    # ------------------------------------------------------------------------------------------ the tables

    def _table(self, key: str) -> BatchedTable:
        return self._tables[TABLES[0] if key.startswith("i|") else TABLES[1]]

    def _loader(self, table: BatchedTable) -> Any:
        def load(partitions: frozenset[int]) -> None:
            loaded = 0
            for raw_key, value in list(table.data.items()):
                key = raw_key.decode()
                if key.startswith(UPTO):
                    partition = int(key.removeprefix(UPTO))
                    if value is not None and partition in partitions:
                        self._order.taken_over(partition, msgspec.msgpack.decode(value, type=int))
                elif value is not None and rollup_partition(parse_key(key).pool) in partitions:
                    self.table.load(rollup_partition(parse_key(key).pool), key, decode_state(value))
                    self._list(key)
                    loaded += 1
            self._count(table)
            log.info("table_recovered", table=table.name, keys=loaded, partitions=sorted(partitions))

        return load

    def _lost(self) -> None:
        self.table, self._by_pool = CapacityTable(), {}
        self._order.lost()
        self.settler.drop()

    def _list(self, key: str) -> None:
        self._by_pool.setdefault(parse_key(key).pool, set()).add(key)

    def _collect(self) -> Iterator[Write]:
        """What changed, encoded one by one as the settler asks: a state that moved on meanwhile is as good,
        since it holds the offset that it has applied. Up to where the tables are complete comes last."""
        table = self.table
        keys, table.unstored = table.unstored, set()
        upto = dict(self._order.next) if keys else {}
        for merged in table.merge_kept():  # a source at a time: all at once would keep rollups waiting
            for key in merged & keys:
                live = table.lives.get(key)
                yield self._write(key, None if live is None else live.merged_state)
            keys -= merged
        for key in keys:
            live = table.lives.get(key)
            yield self._write(key, None if live is None else live.state)
        for partition, offset in upto.items():
            value = msgspec.msgpack.encode(offset)
            yield self._tables[TABLES[0]], f"{UPTO}{partition}".encode(), value, partition

    def _write(self, key: str, state: State | None) -> Write:
        value = None if state is None else encode_state(state)
        return self._table(key), key.encode(), value, rollup_partition(parse_key(key).pool)

    def forget_idle(self) -> None:
        """Drop the keys of which nothing came for 15 minutes."""
        for key in self.table.forget_idle(now_ms() - IDLE_LEAVES_MS):
            self._by_pool[parse_key(key).pool].discard(key)
        self._by_pool = {pool: keys for pool, keys in self._by_pool.items() if keys}

    # ------------------------------------------------------------------------------------------- the agent

    async def _apply_all(self, stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            owned = self.ownership.recovered
            if not owned or not await self._order.admits(message.partition, message.offset):
                continue  # it comes again
            try:
                self._apply(message.partition, message.offset, tuple(message.headers or ()), message.value)
            except Refused as refused:
                if not await self._put_aside(message, refused):
                    return
            except Exception as error:  # the record is bad, or we are: either way it must not stop the rest
                log.exception("rollup_failed", partition=message.partition, offset=message.offset)
                reason = f"{ROLLUPS.name}: the rollup could not be applied: {type(error).__name__}."
                if not await self._put_aside(message, Refused("impossible_value", reason)):
                    return
            else:
                self._dead.accepted()
            self.settler.note(event)

    async def _put_aside(self, message: Any, refused: Refused) -> bool:
        self._metrics.dead.labels(message.topic).inc()
        try:
            await self._dead.write(
                message.topic,
                message.partition,
                message.offset,
                tuple(message.headers or ()),
                message.value,
                refused,
            )
        except TooManyDeadLetters as error:
            self._health.fail("capacity", str(error))
            return False
        return True

    def _apply(self, partition: int, offset: int, headers: Any, value: bytes | None) -> None:
        _, grouped, cells = decode_partials(headers, value)
        new, skipped = self.table.apply(partition, offset, grouped, cells, now_ms())
        for key in new:
            self._list(key)
        if skipped:
            self._metrics.skipped.inc(skipped)
        self._metrics.applied.inc()
        self.wake.set()

    # --------------------------------------------------------------------------------------------- looking

    def state(self, key: str) -> Live | None:
        """What is held of a key, or None."""
        return self.table.lives.get(key)

    def keys_of(self, pool: str) -> frozenset[str]:
        """All keys of a pool."""
        return frozenset(self._by_pool.get(pool, ()))

    def pools(self) -> Iterator[str]:
        """All pools of which there are keys."""
        return iter(list(self._by_pool))

    async def run(self, store_ms: float) -> None:
        """Store on a timer until cancelled; half of the time goes into writing."""
        turns = 0
        half_s = store_ms / 2_000.0
        while True:
            await asyncio.sleep(half_s)
            turns += 1
            if self.ownership.recovered:
                if turns % 60 == 0:
                    self.forget_idle()
                await self.settler.settle(half_s)
            for table in self._tables.values():
                self._count(table)

    def _count(self, table: BatchedTable) -> None:
        keys = len(table.data) - sum(f"{UPTO}{p}".encode() in table.data for p in range(ROLLUPS.partitions))
        self._metrics.table_keys.labels(table.name.partition("-v")[0]).set(keys)
