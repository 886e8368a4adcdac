"""The storage rule against a model: whatever fails or crashes, nothing is missing, nothing stored twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sinks.blocks import DAY_MS, Row, cut_blocks, unstored
from sinks.clickhouse.engine import StoreError
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.writer import Writer

DAY_0 = 20_000


class Crash(BaseException):
    """The process dies here."""


class FakeStore:
    """One table; each insert may fail or crash, before or after it took effect."""

    def __init__(self, fates: list[str]) -> None:
        self.fates = fates
        self.there: list[tuple[int, int, int]] = []

    def insert(
        self, table: str, names: Sequence[str], types: Sequence[str], columns: Sequence[Sequence[Any]]
    ) -> None:
        fate = self.fates.pop(0) if self.fates else "fine"
        block = list(zip(*columns, strict=True))
        assert len({values[3] for values in block}) == 1, "a block holds one day"
        if not fate.endswith("before"):
            self.there += [values[:3] for values in block]
        if fate.startswith("fail"):
            raise StoreError("ClickHouse said: no")
        if fate.startswith("crash"):
            raise Crash

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        if "outcomes_raw" not in sql:
            return []
        last: dict[int, tuple[int, int]] = {}
        for partition, offset, event in self.there:
            last[partition] = max(last.get(partition, (-1, -1)), (offset, event))
        return list(last.items())

    def command(self, sql: str) -> None:
        """The rollup is not this test's."""

    def close(self) -> None:
        """Nothing to close."""


def _row(partition: int, offset: int, event: int, day: int) -> Row:
    return Row(partition, offset, event, day * DAY_MS + 5, [partition, offset, event, day])


@st.composite
def _logs(draw: st.DrawFn) -> list[Row]:
    """Rows of a few partitions in the order read: envelopes of 1 to 3 events, days jumping about."""
    rows = []
    for partition in range(draw(st.integers(1, 3))):
        offset = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(0, 6))):
            days = draw(st.lists(st.integers(DAY_0, DAY_0 + 2), min_size=1, max_size=3))
            rows += [_row(partition, offset, event, day) for event, day in enumerate(days)]
            offset += draw(st.integers(1, 3))
    return rows


_FATES = st.lists(
    st.sampled_from(["fine", "fail before", "fail after", "crash before", "crash after"]), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(log=_logs(), fates=_FATES, batch=st.integers(1, 7))
@example(log=[_row(0, 1, 0, DAY_0 + 1), _row(0, 1, 1, DAY_0)], fates=["crash after"], batch=2)
def test_each_row_once_through_failures_and_crashes(log: list[Row], fates: list[str], batch: int) -> None:
    store = FakeStore(list(fates))
    for _ in range(len(fates) + 1):
        try:
            asyncio.run(_run(store, log, batch))
            break
        except Crash:
            continue  # a new process starts from the table
    expected = Counter((row.partition, row.offset, row.event) for row in log)
    assert Counter(store.there) == expected


async def _run(store: FakeStore, log: list[Row], batch: int) -> None:
    """A sink's life: start where the table stands (its last record is read again), go on in batches."""
    writer = Writer(store, Health(), SinkMetrics(), backoff_s=0.0)
    await writer.recover()
    stored = writer.stored["outcomes_raw"]
    left = [row for row in log if row.offset >= stored.get(row.partition, (0, 0))[0]]
    for start in range(0, len(left), batch):
        await writer.write("outcomes_raw", left[start : start + batch])


@given(log=_logs(), max_rows=st.integers(1, 5))
def test_the_position_never_passes_a_row_that_is_not_stored(log: list[Row], max_rows: int) -> None:
    done: set[tuple[int, int, int]] = set()
    for block in cut_blocks(log, max_rows=max_rows):
        assert block
        assert len({row.day for row in block}) == 1
        assert len(block) <= max_rows
        done |= {(row.partition, row.offset, row.event) for row in block}
        stored = {p: max((o, e) for q, o, e in done if q == p) for p in {p for p, _, _ in done}}
        passed = [row for row in log if row.position <= stored.get(row.partition, (-1, -1))]
        assert all((row.partition, row.offset, row.event) in done for row in passed)
        assert len(unstored(log, stored)) == len(log) - len(done)
    assert len(done) == len(log)


def test_a_failure_shows_in_health_until_it_works_again() -> None:
    health = Health()
    health.fails("no disk", 1_000.0)
    health.fails("no disk", 10_000.0)
    assert health.trouble(15_000.0) is None
    assert health.trouble(16_500.0) == "Failing for 16 s: no disk"
    health.works()
    assert health.trouble(99_000.0) is None
