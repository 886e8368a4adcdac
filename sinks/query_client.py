"""Reading through the ClickHouse HTTP interface: the sink's endpoint or a server, with SQL from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp

from sinks.clickhouse.tables import DATABASE

DEFAULT_URL = "http://127.0.0.1:8123"
Parameter = str | int | float | Sequence[str] | None


class QueryError(RuntimeError):
    """The store could not be asked, or refused; the message is a sentence."""


class QueryClient:
    """Runs the named queries of ``sinks/queries``. ``url`` may carry user and password."""

    def __init__(self, url: str = DEFAULT_URL, *, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise QueryError(f"{url!r} is not a URL like {DEFAULT_URL}.")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        netloc = f"{host}:{parts.port}" if parts.port else host
        self.url = urlunsplit((parts.scheme, netloc, parts.path or "/", "", ""))
        self._auth = (
            aiohttp.BasicAuth(unquote(parts.username), unquote(parts.password or ""))
            if parts.username
            else None
        )
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def run(self, query: str, **parameters: Parameter) -> list[dict[str, Any]]:
        """The rows of a named query. Raises QueryError."""
        sql = (files("sinks") / "queries" / f"{query}.sql").read_text(encoding="utf-8")
        settings = {
            "database": DATABASE,
            "default_format": "JSONEachRow",
            "output_format_json_quote_64bit_integers": "0",
        }
        given = {f"param_{name}": _text(value) for name, value in parameters.items()}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout, auth=self._auth) as session,
                session.post(self.url, params={**settings, **given}, data=sql.encode()) as response,
            ):
                body = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise QueryError(
                f"No ClickHouse endpoint answered at {self.url} ({type(error).__name__}). Start one with "
                "`tokenfleet sink` or `tokenfleet up`, or name it with --url."
            ) from error
        if response.status != 200 or "X-ClickHouse-Exception-Code" in response.headers:
            raise QueryError(f"ClickHouse at {self.url} refused the query {query}: {body.strip()[:500]}")
        return [json.loads(line) for line in body.splitlines() if line]


def _text(value: Parameter) -> str:
    """A parameter as ClickHouse reads it: TSV escapes outside, quotes within arrays."""
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, (int, float)):
        return str(value)
    inner = ", ".join("'" + item.replace("\\", "\\\\").replace("'", "\\'") + "'" for item in value)
    return f"[{inner}]"


def _escaped(value: str) -> str:
    for char, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"), ("\x00", "\\0")):
        value = value.replace(char, escape)
    return value
