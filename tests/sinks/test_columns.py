"""The models' fields, the derived columns and the tables that the migrations make are one and the same."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import msgspec
import pytest

from schemas.codec import to_json
from schemas.fastpath import decoder_of
from sinks.clickhouse.engine import ClickHouseStore
from sinks.clickhouse.tables import TABLES, Table
from tests.schemas.samples import sample
from transport.clock import now_ms


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_field_has_a_column_or_a_reason(table: Table) -> None:
    names = {column.name for column in table.event_columns}
    for field in table.topic.model.model_fields:
        if field in table.left_out:
            assert len(table.left_out[field]) > 10
            continue
        ours = "ts" if field == table.clock_field else field
        stems = {ours, ours.removesuffix("_ms")}
        nested = field in ("gauges", "counters") or any(name.startswith(f"{field}_") for name in names)
        assert stems & names or nested, f"{table.name} has no column for {field}"
    assert not set(table.left_out) - set(table.topic.model.model_fields)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_migrated_table_has_exactly_the_derived_columns(table: Table, store: ClickHouseStore) -> None:
    there = store.rows(
        "SELECT name, type FROM system.columns WHERE database = 'tokenfleet' AND table = {t:String} "
        "ORDER BY position",
        {"t": table.name},
    )
    assert [tuple(row) for row in there] == list(zip(table.column_names, table.column_types, strict=True))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_random_events_come_back_as_they_went_in(table: Table, store: ClickHouseStore) -> None:
    rng = random.Random(11)
    columns = table.event_columns
    for number in range(15):
        event = sample(table.topic.model, rng).model_copy(update={table.clock_field: now_ms()})
        struct = decoder_of(table.topic.model).decode(to_json(event))
        values = [table.topic.name, 0, number, 0, None, None, None, 1_700_000_000_000, *table.values(struct)]
        store.insert(table.name, table.column_names, table.column_types, [[value] for value in values])
        quoted = ", ".join(column.name for column in columns)
        (back,) = store.rows(f"SELECT {quoted} FROM {table.name} WHERE _offset = {number}")
        for column, came in zip(columns, back, strict=True):
            assert _same(column.get(struct), came), column.name
        store.command(f"TRUNCATE TABLE {table.name}")


def _same(went: object, came: object) -> bool:
    if isinstance(came, datetime):
        assert isinstance(went, int)
        return round(came.replace(tzinfo=UTC).timestamp() * 1000) == went
    if isinstance(went, str) and isinstance(came, str) and went.startswith(("[", "{")):
        return bool(msgspec.json.decode(went) == msgspec.json.decode(came))
    return went == came
