"""Batches into ClickHouse: each row once, through errors and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.resources import files

import structlog

from sinks.blocks import Position, Row, cut_blocks, unstored
from sinks.clickhouse.engine import Store, StoreError
from sinks.clickhouse.tables import TABLES, Table
from sinks.health import Health
from sinks.metrics import SinkMetrics
from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)

MAX_BACKOFF_S = 5.0
_BY_NAME = {table.name: table for table in TABLES}


class Writer:
    """Inserts rows by the storage rule (``sinks.blocks``); the only writer of its database.

    After any error it asks the table again where it stands and goes on from there, as after a crash: so an
    insert that failed *and* one that went through but whose answer was lost are the same to it.
    """

    def __init__(self, store: Store, health: Health, metrics: SinkMetrics, *, backoff_s: float = 0.5) -> None:
        self._store = store
        self._health = health
        self._metrics = metrics
        self._backoff_s = backoff_s
        self._heal = (files("sinks") / "queries" / "heal_telemetry_1m.sql").read_text(encoding="utf-8")
        self.stored: dict[str, dict[int, Position]] = {}
        """Table name to partition to the greatest stored position."""

    async def recover(self) -> None:
        """Ask all tables where they stand, and complete the rollup. Raises StoreError."""
        for table in TABLES:
            self.stored[table.name] = await asyncio.to_thread(self._ask, table)
        await asyncio.to_thread(self._store.command, self._heal)

    async def write(self, table_name: str, rows: Sequence[Row]) -> None:
        """Store what of these rows is not stored yet; returns when all are. Tries for ever."""
        table = _BY_NAME[table_name]
        pending = unstored(rows, self.stored[table_name])
        self._metrics.skipped.labels(table_name).inc(len(rows) - len(pending))
        wait_s = self._backoff_s
        while pending:
            try:
                for block in cut_blocks(pending):
                    await self._insert(table, block)
                self._health.works()
                return
            except StoreError as error:
                self._failed("insert", str(error))
            while True:
                await asyncio.sleep(wait_s)
                wait_s = min(MAX_BACKOFF_S, wait_s * 2)
                try:
                    await self.recover()
                    break
                except StoreError as error:
                    self._failed("recover", str(error))
            pending = unstored(pending, self.stored[table_name])
        self._health.works()

    async def _insert(self, table: Table, block: list[Row]) -> None:
        columns = list(zip(*(row.values for row in block), strict=True))
        began_ms = monotonic_ms()
        await asyncio.to_thread(
            self._store.insert, table.name, table.column_names, table.column_types, columns
        )
        self._metrics.inserts.labels(table.name).observe((monotonic_ms() - began_ms) / 1000.0)
        self._metrics.rows.labels(table.name).inc(len(block))
        stored = self.stored[table.name]
        for row in block:
            stored[row.partition] = max(stored.get(row.partition, (-1, -1)), row.position)

    def _ask(self, table: Table) -> dict[int, Position]:
        answer = self._store.rows(
            f"SELECT _partition, max((_offset, _event)) FROM {table.name} GROUP BY _partition"  # noqa: S608
        )
        return {int(partition): (int(position[0]), int(position[1])) for partition, position in answer}

    def _failed(self, step: str, reason: str) -> None:
        self._health.fails(reason, monotonic_ms())
        self._metrics.retries.labels(step).inc()
        log.warning("store_failed", step=step, reason=reason)
