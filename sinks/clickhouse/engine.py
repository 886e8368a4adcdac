"""One small interface over ClickHouse in this process (chdb) and a ClickHouse server.

All calls block: from an event loop use ``asyncio.to_thread``.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

from sinks.clickhouse.tables import DATABASE

EXPECTED_SERVER_WAIT_S = 10


class StoreError(RuntimeError):
    """ClickHouse could not do what it was asked for; the message holds ClickHouse's own words."""


class Store(Protocol):
    """What the sink needs of ClickHouse. Methods raise StoreError and may be called from any thread."""

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a query; all of its rows."""

    def insert(
        self, table: str, names: Sequence[str], types: Sequence[str], columns: Sequence[Sequence[Any]]
    ) -> None:
        """Insert columns as one block."""

    def close(self) -> None:
        """Let go of the engine; the data stay."""


class ClickHouseStore:
    """A clickhouse-connect client with one lock, so that calls never interleave."""

    def __init__(self, client: Any, *, where: str, claim: IO[str] | None = None) -> None:
        self._client = client
        self._where = where
        self._claim = claim
        self._lock = threading.Lock()

    def command(self, sql: str) -> None:
        with self._lock, _Said(self._where):
            self._client.command(sql)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._lock, _Said(self._where):
            return list(self._client.query(sql, parameters=dict(parameters or {})).result_rows)

    def insert(
        self, table: str, names: Sequence[str], types: Sequence[str], columns: Sequence[Sequence[Any]]
    ) -> None:
        with self._lock, _Said(self._where):
            self._client.insert(
                table,
                columns,
                column_names=list(names),
                column_type_names=list(types),
                column_oriented=True,
                # One block, also where a server would rather cut or delay it: whole or absent.
                settings={"async_insert": 0, "max_insert_block_size": 1_000_000, "max_insert_threads": 1},
            )

    def close(self) -> None:
        with self._lock:
            self._client.close()
            if self._claim is not None:
                self._claim.close()
                self._claim = None


class _Said:
    """Turns the client library's errors into StoreError."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StoreError):
            detail = " ".join(str(error).split())[:600]
            raise StoreError(f"ClickHouse at {self._where} said: {detail}") from error


def open_embedded(data: Path) -> ClickHouseStore:
    """ClickHouse in this process, with its data in ``data/clickhouse``; one process at a time.

    Raises StoreError where the folder can't be used, or another process has it.
    """
    import clickhouse_connect

    path = embedded_path(data)
    try:
        path.mkdir(parents=True, exist_ok=True)
        claim = (data / "sink.lock").open("a+")
    except OSError as error:
        raise StoreError(f"The data folder {data} can't be used: {error.strerror or error}.") from error
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when this process ends
    except OSError as error:
        claim.close()
        raise StoreError(
            f"The data folder {data} is in use by another process; stop that sink or choose another folder."
        ) from error
    try:
        with _Said(str(path)):
            client = clickhouse_connect.get_client(interface="chdb", path=str(path))
            client.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            client.database = DATABASE
    except StoreError:
        claim.close()
        raise
    return ClickHouseStore(client, where=str(path), claim=claim)


def embedded_path(data: Path) -> Path:
    """Where the embedded engine's files are; chdb compares paths literally, so always in this spelling."""
    return data.resolve() / "clickhouse"


def open_server(url: str) -> ClickHouseStore:
    """A ClickHouse server at ``http[s]://[user[:password]@]host[:port]``. Raises StoreError.

    Messages name host and port only, never the password.
    """
    import clickhouse_connect

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StoreError("A ClickHouse URL looks like http://user:password@host:8123; this one does not.")
    secure = parts.scheme == "https"
    port = parts.port or (8443 if secure else 8123)
    where = f"{parts.hostname}:{port}"
    with _Said(where):
        settings = {
            "host": parts.hostname,
            "port": port,
            "secure": secure,
            "username": unquote(parts.username or "default"),
            "password": unquote(parts.password or ""),
            "connect_timeout": EXPECTED_SERVER_WAIT_S,
            "autogenerate_session_id": False,
        }
        client = clickhouse_connect.get_client(**settings)
        client.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        client.database = DATABASE
    return ClickHouseStore(client, where=where)
