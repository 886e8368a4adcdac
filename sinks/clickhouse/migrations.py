"""Numbered migrations, forwards and backwards, each applied once and checked by its checksum."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import structlog

from sinks.clickhouse.engine import Store
from sinks.clickhouse.lexer import statements

log = structlog.get_logger(__name__)

_FILE = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_UP, _DOWN = "-- migrate:up", "-- migrate:down"
_LOG = """
CREATE TABLE IF NOT EXISTS schema_migrations
(
    step UInt32,
    number UInt32,
    name String,
    checksum String,
    action Enum8('up' = 1, 'down' = 2),
    at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY step
"""


class MigrationError(RuntimeError):
    """The schema can't be brought to this version; the message says why and what to do."""


@dataclass(frozen=True)
class Migration:
    """One numbered step. ``checksum`` covers what is executed, not comments or spacing."""

    number: int
    name: str
    up: tuple[str, ...]
    down: tuple[str, ...]

    @property
    def checksum(self) -> str:
        text = "\x00".join([*self.up, "", *self.down])
        return hashlib.sha256(text.encode()).hexdigest()


def load(folder: Traversable | None = None) -> list[Migration]:
    """The migrations of a folder (those of the package by default), in order. Raises MigrationError."""
    folder = folder if folder is not None else files("sinks") / "migrations"
    found = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        match = _FILE.match(entry.name)
        if match is None:
            continue
        text = entry.read_text(encoding="utf-8")
        head, up_mark, rest = text.partition(_UP)
        up, down_mark, down = rest.partition(_DOWN)
        if not up_mark or not down_mark or statements(head):
            raise MigrationError(f"The migration {entry.name} needs the two parts `{_UP}` and `{_DOWN}`.")
        found.append(Migration(int(match[1]), match[2], tuple(statements(up)), tuple(statements(down))))
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise MigrationError(f"Migrations are numbered 1, 2, 3, ...; this version has {numbers}.")
    return found


def applied(store: Store) -> dict[int, tuple[str, str]]:
    """What is applied now: number to (name, checksum)."""
    store.command(_LOG)
    state: dict[int, tuple[str, str]] = {}
    for number, name, checksum, action in store.rows(
        "SELECT number, name, checksum, action FROM schema_migrations ORDER BY step"
    ):
        if action == "up":
            state[number] = (name, checksum)
        else:
            state.pop(number, None)
    return state


def migrate(store: Store, *, to: int | None = None, migrations: list[Migration] | None = None) -> list[int]:
    """Bring the schema to migration ``to`` (the newest by default), forwards or backwards.

    Returns the numbers of the migrations that were applied or undone. A step that was cut off is run again:
    its statements are written so that this does no harm. Raises MigrationError before anything is changed
    where an applied migration differs from this version's or is unknown to it; StoreError from ClickHouse.
    """
    known = {migration.number: migration for migration in (migrations if migrations is not None else load())}
    target = max(known, default=0) if to is None else to
    if target != 0 and target not in known:
        raise MigrationError(f"There is no migration {target}; the newest here is {max(known, default=0)}.")
    there = applied(store)
    for number, (name, checksum) in there.items():
        if number not in known:
            raise MigrationError(
                f"ClickHouse has migration {number} ({name}), which this version of TokenFleet does not "
                "know: a newer version made it. Upgrade, or use another data folder."
            )
        if known[number].checksum != checksum:
            raise MigrationError(
                f"Migration {number} ({name}) was changed after it had been applied: checksums differ. "
                "Put the file back as it was and write a new migration."
            )
    done = []
    for number in sorted(set(known) - set(there)):
        if number <= target:
            _run(store, known[number], "up")
            done.append(number)
    for number in sorted(there, reverse=True):
        if number > target:
            _run(store, known[number], "down")
            done.append(number)
    return done


def _run(store: Store, migration: Migration, action: str) -> None:
    for statement in migration.up if action == "up" else migration.down:
        store.command(statement)
    names, types = ["step", "number", "name", "checksum", "action"], ["UInt32", "UInt32", "String", "String"]
    step = store.rows("SELECT max(step) + 1 FROM schema_migrations")[0][0]
    store.insert(
        "schema_migrations",
        names,
        [*types, "Enum8('up' = 1, 'down' = 2)"],
        [[step], [migration.number], [migration.name], [migration.checksum], [action]],
    )
    log.info("migration", number=migration.number, name=migration.name, action=action)
