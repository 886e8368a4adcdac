"""Stage two: applies rollups to the tables ``instances`` and ``regions`` by the merge rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import faust
import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from minds.capacity.cell_columns import CellColumns
from minds.capacity.folds import FORMAT, decode_state, encode_state, parse_key
from minds.capacity.kept_cells import together
from minds.capacity.live import Live
from minds.capacity.window_bank import CellRows, WindowBank
from minds.merge import SourceTurns
from schemas.codec import Refused
from schemas.topics import ROLLUPS
from streams.contiguous import Contiguous
from streams.faust_tables import BatchedTable, Ownership, Settler, Write, raw_table, stateful_agent
from streams.health import Health, Metrics
from streams.interval import rollup_partition
from streams.rollups import Cells, decode_partials, with_partials
from transport.clock import now_ms
from transport.dead_letters import DeadLetterWriter, TooManyDeadLetters

log = structlog.get_logger(__name__)

TABLES = (f"instances-v{FORMAT}", f"regions-v{FORMAT}")
UPTO = "o|"
"""Keys of the first table that hold no state, but a partition's next rollup: all before it is stored."""
IDLE_LEAVES_MS = 15 * 60_000
"""A key of which nothing came for so long is forgotten: three times the longest window."""

MOST_KEPT = 10
"""Rollups of a source whose cells keys keep for later: a second's at a flush of 100 ms."""


def phase_of(key: str) -> float:
    """A number from 0 to 1 for a key, always the same."""
    return crc32(key.encode()) / 2**32


class CapacityStage:
    """The states of all keys of the owned partitions, decoded; the Faust tables hold their stored form."""

    def __init__(
        self, app: faust.App, dead_letters: DeadLetterWriter, health: Health, metrics: Metrics
    ) -> None:
        self._dead = dead_letters
        self._health = health
        self._metrics = metrics
        self._tables = {name: raw_table(app, name, ROLLUPS) for name in TABLES}
        self._states: dict[str, Live] = {}
        self._by_pool: dict[str, set[str]] = {}
        self._unstored: set[str] = set()
        self._bank = WindowBank(1024)
        self._turns = SourceTurns()
        self._kept: dict[tuple[int, str], list[CellColumns]] = {}
        self._order = Contiguous(app, ROLLUPS.name)
        self.changed: set[str] = set()
        """Keys that changed since the publisher last looked; it clears them."""
        self.counted: dict[int, dict[str, Live]] = {}
        """The same, by partition, of which nothing but counts of outcomes changed."""
        self.wake = asyncio.Event()
        """Set whenever there are any."""
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
                    live = Live(decode_state(value), phase_of(key), self._bank)
                    self._put(key, live)
                    self._turns.learn(rollup_partition(parse_key(key).pool), live.state)
                    loaded += 1
            self._count(table)
            log.info("table_recovered", table=table.name, keys=loaded, partitions=sorted(partitions))

        return load

    def _lost(self) -> None:
        self._states, self._by_pool = {}, {}
        self._bank, self._turns, self._kept = WindowBank(1024), SourceTurns(), {}
        self._order.lost()
        self._unstored, self.changed, self.counted = set(), set(), {}
        self.settler.drop()

    def _put(self, key: str, state: Live) -> None:
        self._states[key] = state
        self._by_pool.setdefault(parse_key(key).pool, set()).add(key)

    def _collect(self) -> Iterator[Write]:
        """What changed, encoded one by one as the settler asks: a state that moved on meanwhile is as good,
        since it holds the offset that it has applied. Up to where the tables are complete comes last."""
        for partition, source in list(self._kept):
            self._merge_kept(partition, source, 0)
        keys, self._unstored = self._unstored, set()
        upto = dict(self._order.next) if keys else {}
        for key in keys:
            live = self._states.get(key)
            partition = rollup_partition(parse_key(key).pool)
            value = None if live is None else encode_state(live.state)
            yield self._table(key), key.encode(), value, partition
        for partition, offset in upto.items():
            value = msgspec.msgpack.encode(offset)
            yield self._tables[TABLES[0]], f"{UPTO}{partition}".encode(), value, partition

    def forget_idle(self) -> None:
        """Drop the keys of which nothing came for 15 minutes."""
        before_ms = now_ms() - IDLE_LEAVES_MS
        for key, live in list(self._states.items()):
            if live.changed_at_ms >= before_ms:
                continue
            state = live.state
            newest = max([state.closed.mark_ms, *(held.delta.mark_ms for held in state.open.values())])
            if newest < before_ms:
                self._states.pop(key).forget()
                self._by_pool[parse_key(key).pool].discard(key)
                self._unstored.add(key)
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
        now = now_ms()
        in_turn = [each for each in cells if self._comes_in_turn(partition, each)]
        for each in cells:
            if each not in in_turn:
                with_partials(grouped, each.interval, each.columns, every=True)
        rows = CellRows()
        for key, partials in grouped.items():
            for partial in partials:
                self._turns.note(partition, partial)
            if self._live(key).apply(offset, partials, now, rows):
                self._unstored.add(key)
                self.changed.add(key)
            else:
                self._metrics.skipped.inc()
        rows.add_to(self._bank, now)
        for each in in_turn:
            self._keep(partition, offset, each, now)
            self._merge_kept(partition, each.interval.source, MOST_KEPT)
        self._metrics.applied.inc()
        self.wake.set()

    def _live(self, key: str) -> Live:
        live = self._states.get(key)
        if live is None:
            live = Live(phase=phase_of(key), bank=self._bank)
            self._put(key, live)
        return live

    def _comes_in_turn(self, partition: int, cells: Cells) -> bool:
        """Whether its keys may merge it later: it replaces nothing that any of them holds."""
        interval, columns, others = cells
        turn = self._turns.of(partition, interval)
        if turn == "same":  # the other part of an interval that took two records
            return not any(
                (live := self._states.get(key)) is not None and live.holds(interval.source, interval.base)
                for place, key in enumerate(columns.keys)
                if place not in others
            )
        return turn == "next"

    def _merge_kept(self, partition: int, source: str, most: int) -> None:
        """Have the keys of a source merge what they keep, once it is of more than ``most`` rollups."""
        kept = self._kept.get((partition, source), [])
        if len(kept) > most:
            del self._kept[partition, source]
            sums = {source: together(kept)} if len(kept) > 1 else {}
            for key in {key for columns in kept for key in columns.keys}:
                if (live := self._states.get(key)) is not None:
                    live.settle(key, sums)

    def _keep(self, partition: int, offset: int, cells: Cells, now: int) -> None:
        """Have each key keep its cells for later; their counts show at once."""
        interval, columns, others = cells
        self._turns.note(partition, interval)
        self._kept.setdefault((partition, interval.source), []).append(columns)
        counted = self.counted.setdefault(partition, {})
        lanes = []
        for place, key in enumerate(columns.keys):
            lane = -1
            if place not in others:
                live = self._live(key)
                if offset > live.applied:
                    lane = live.keep(offset, interval, columns, place, now)
                    counted[key] = live
                else:
                    self._metrics.skipped.inc()
            lanes.append(lane)
        self._unstored.update(counted)
        number_of = self._bank.number_of
        numbers = np.array([number_of(boot) for boot in columns.boots], np.int64)
        self._bank.add(
            np.array(lanes, np.int64),
            columns.ends,
            numbers[columns.boot_of],
            columns.seconds,
            columns.counts,
            now,
        )

    # --------------------------------------------------------------------------------------------- looking

    def state(self, key: str) -> Live | None:
        """What is held of a key, or None."""
        return self._states.get(key)

    def counts(self, lanes: list[int], now: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The windows' counts of keys by the lanes of their ``Live``, a row each, one window after the other;
        and whether they are sound: if not, the ``Live`` must be asked."""
        self._bank.roll(np.array(lanes, np.int64), now)
        return self._bank.sums[lanes].reshape(len(lanes), -1), ~self._bank.ahead[lanes]

    def keys_of(self, pool: str) -> frozenset[str]:
        """All keys of a pool."""
        return frozenset(self._by_pool.get(pool, ()))

    def pools(self) -> Iterator[str]:
        """All pools of which there are keys."""
        return iter(list(self._by_pool))

    async def run(self, store_ms: float) -> None:
        """Store on a timer until cancelled."""
        turns = 0
        while True:
            await asyncio.sleep(store_ms / 1000.0)
            turns += 1
            if self.ownership.recovered:
                if turns % 60 == 0:
                    self.forget_idle()
                await self.settler.settle()
            for table in self._tables.values():
                self._count(table)

    def _count(self, table: BatchedTable) -> None:
        keys = len(table.data) - sum(f"{UPTO}{p}".encode() in table.data for p in range(ROLLUPS.partitions))
        self._metrics.table_keys.labels(table.name.partition("-v")[0]).set(keys)
