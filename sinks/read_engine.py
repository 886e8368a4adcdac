"""Read-only queries on the embedded engine: a handle a query, with limits that a query can only tighten."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinks.clickhouse.tables import DATABASE
from sinks.read_only import Gate, NotAllowed

LIMITS: Mapping[str, int] = {
    "max_execution_time": 30,
    "max_result_rows": 1_000_000,
    "max_result_bytes": 512 * 1024 * 1024,
    "max_memory_usage": 2 * 1024**3,
    "max_threads": 2,
}
"""Seconds, rows, bytes, bytes, threads. A client may ask for less, never for more."""
CLIENT_SETTINGS = frozenset(
    {
        "date_time_output_format",
        "extremes",
        "join_use_nulls",
        "output_format_arrow_compression_method",
        "output_format_arrow_string_as_string",
        "output_format_json_escape_forward_slashes",
        "output_format_json_named_tuples_as_objects",
        "output_format_json_quote_64bit_floats",
        "output_format_json_quote_64bit_integers",
        "output_format_json_quote_decimals",
        "output_format_json_quote_denormals",
        "session_timezone",
    }
)
"""Settings that only change how an answer looks; by name, since others of ``output_format_*`` write files."""
DATABASES = frozenset({DATABASE, "system", "information_schema"})
REFUSED_FORMATS = frozenset(
    {"mysqlwire", "postgresqlwire", "odbcdriver2", "arrowtable", "dataframe", "datastore"}
)
READONLY_CODE = 164
PARALLEL_QUERIES = 4
_CODE = re.compile(r"Code: (\d+)")


class QueryFailed(RuntimeError):  # noqa: N818 - reads as what happened
    """The engine's or the gate's refusal, as ClickHouse words it: ``Code: N. DB::Exception: ...``."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @classmethod
    def refused(cls, reason: str) -> QueryFailed:
        """A refusal of our own, under ClickHouse's code for read-only mode."""
        return cls(READONLY_CODE, f"Code: {READONLY_CODE}. DB::Exception: {reason} (READONLY)")


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of a result and what the engine says of them."""

    body: bytes
    format: str
    read_rows: int
    read_bytes: int
    elapsed_ns: int


class ReadEngine:
    """Queries on the data at ``path``, which this process has open as the writer."""

    def __init__(self, path: Path, *, limits: Mapping[str, int] = LIMITS) -> None:
        self._path = str(path)
        self._limits = dict(limits)
        self._threads = ThreadPoolExecutor(PARALLEL_QUERIES, thread_name_prefix="query")
        self._gate, self._formats, self.timezone = self._look()

    def close(self) -> None:
        """Wait for queries that run, and let no more in."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def query(
        self,
        sql: str,
        *,
        default_format: str = "TabSeparated",
        parameters: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        database: str = DATABASE,
    ) -> Answer:
        """Run one read-only statement. ``parameters`` are without ``param_``. Raises QueryFailed."""
        try:
            statement, own_format = self._gate.check(sql)
        except NotAllowed as error:
            raise QueryFailed.refused(str(error)) from None
        wanted = own_format or default_format
        name = self._formats.get(wanted.lower())
        if name is None:
            raise QueryFailed(73, f"Code: 73. DB::Exception: Unknown format {wanted[:60]}. (UNKNOWN_FORMAT)")
        database = DATABASE if database in ("", "default") else database
        if database.lower() not in DATABASES:
            raise QueryFailed(
                81, f"Code: 81. DB::Exception: Database {database[:60]} does not exist. (UNKNOWN_DATABASE)"
            )
        applied = self._settings(settings or {})
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._run, statement, name, dict(parameters or {}), applied, database
        )

    def _settings(self, asked: Mapping[str, str]) -> dict[str, str]:
        applied = {name: str(value) for name, value in self._limits.items()}
        for name, value in asked.items():
            if name in self._limits:
                number = int(value) if value.isdecimal() else 0
                if number:
                    applied[name] = str(min(number, self._limits[name]))
            elif name in CLIENT_SETTINGS:
                applied[name] = value
            else:
                raise QueryFailed.refused(f"The setting {name[:60]} can't be changed here.")
        return applied

    def _run(
        self, sql: str, fmt: str, parameters: dict[str, str], settings: dict[str, str], database: str
    ) -> Answer:
        import chdb

        try:
            handle = chdb.connect(self._path)
            try:
                handle.query(f"USE {database}")
                assignments = ", ".join(f"{name} = {_quoted(value)}" for name, value in settings.items())
                handle.query(f"SET {assignments}, readonly = 1")
                result = handle.query(sql, fmt, params=parameters)
                return Answer(
                    bytes(result.bytes() or b""),
                    fmt,
                    int(result.rows_read()),
                    int(result.bytes_read()),
                    int(result.elapsed() * 1e9),
                )
            finally:
                handle.close()
        except RuntimeError as error:
            raise _failure(str(error)) from None

    def _look(self) -> tuple[Gate, dict[str, str], str]:
        import chdb

        handle = chdb.connect(self._path)
        try:

            def names(sql: str) -> list[str]:
                return [line for line in handle.query(sql, "TSV").bytes().decode().split("\n") if line]

            gate = Gate(
                names("SELECT name FROM system.table_functions"), names("SELECT name FROM system.functions")
            )
            formats = {
                name.lower(): name
                for name in names("SELECT name FROM system.formats WHERE is_output")
                if name.lower() not in REFUSED_FORMATS
            }
            return gate, formats, names("SELECT timezone()")[0]
        finally:
            handle.close()


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _failure(text: str) -> QueryFailed:
    start = text.find("Code: ")
    text = text[start:].strip() if start >= 0 else text
    match: Any = _CODE.match(text)
    if match is None:
        return QueryFailed(1002, f"Code: 1002. DB::Exception: {text} (UNKNOWN_EXCEPTION)")
    return QueryFailed(int(match[1]), text)
