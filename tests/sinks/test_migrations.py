"""Migrations go up and down, once each, and stop at what they don't know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sinks.clickhouse.engine import ClickHouseStore, StoreError
from sinks.clickhouse.migrations import Migration, MigrationError, applied, load, migrate


def _tables(store: ClickHouseStore) -> set[str]:
    return {row[0] for row in store.rows("SHOW TABLES")}


def test_down_and_up_again(store: ClickHouseStore) -> None:
    everything = _tables(store)
    newest = len(load())
    assert migrate(store) == []
    assert migrate(store, to=0) == list(range(newest, 0, -1))
    assert _tables(store) == {"schema_migrations"}
    assert migrate(store, to=2) == [1, 2]
    assert "telemetry_raw" in _tables(store)
    assert migrate(store) == list(range(3, newest + 1))
    assert _tables(store) == everything


def test_a_changed_migration_stops(store: ClickHouseStore) -> None:
    changed = load()
    changed[1] = replace(changed[1], up=(*changed[1].up, "SELECT 1"))
    with pytest.raises(MigrationError, match=r"Migration 2 .* was changed"):
        migrate(store, migrations=changed)
    assert migrate(store) == []


def test_a_newer_one_stops_and_an_unknown_target_too(store: ClickHouseStore) -> None:
    newest = len(load())
    with pytest.raises(MigrationError, match=rf"migration {newest} .* does not know"):
        migrate(store, migrations=load()[:-1])
    with pytest.raises(MigrationError, match="There is no migration 99"):
        migrate(store, to=99)


def test_a_step_that_was_cut_off_is_run_again(store: ClickHouseStore) -> None:
    number = len(load()) + 1
    broken = Migration(
        number, "extra", ("CREATE TABLE IF NOT EXISTS extra (a Int8) ENGINE = Memory", "SELECT no"), ()
    )
    with pytest.raises(StoreError, match="no"):
        migrate(store, migrations=[*load(), broken])
    assert number not in applied(store)
    mended = replace(broken, up=broken.up[:1], down=("DROP TABLE IF EXISTS extra",))
    try:
        assert migrate(store, migrations=[*load(), mended]) == [number]
    finally:
        assert migrate(store, to=number - 1, migrations=[*load(), mended]) == [number]
    assert "extra" not in _tables(store)


def test_the_checksum_is_of_what_runs_not_of_comments(tmp_path) -> None:  # type: ignore[no-untyped-def]
    up = "-- migrate:up\nCREATE TABLE a (b Int8) ENGINE = Memory;\n-- migrate:down\nDROP TABLE a;\n"
    (tmp_path / "0001_a.sql").write_text(up)
    (first,) = load(tmp_path)
    (tmp_path / "0001_a.sql").write_text("-- About a.\n" + up.replace(";\n", "; -- why\n", 1))
    (second,) = load(tmp_path)
    assert first.checksum == second.checksum
    assert second.down == ("DROP TABLE a",)
    (tmp_path / "0003_c.sql").write_text(up)
    with pytest.raises(MigrationError, match="numbered"):
        load(tmp_path)
