"""The sink's HTTP: the read-only ClickHouse endpoint, health and metrics."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sinks.clickhouse.tables import DATABASE
from sinks.health import Health
from sinks.metrics import SinkMetrics
from sinks.read_engine import READONLY_CODE, Answer, QueryFailed, ReadEngine
from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 1024 * 1024
TRANSPORT_PARAMETERS = frozenset(
    {
        "query",
        "database",
        "default_format",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "quota_key",
        "user",
        "password",
        "enable_http_compression",
        "http_zlib_compression_level",
        "wait_end_of_query",
        "buffer_size",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "cancel_http_readonly_queries_on_client_close",
        "client_protocol_version",
        "add_http_cors_header",
        "log_queries",
        "readonly",
    }
)
"""Parameters of the protocol rather than settings; those that do nothing here change no answer."""
HTTP_STATUS = {
    READONLY_CODE: 403,
    36: 400,  # BAD_ARGUMENTS
    46: 404,  # UNKNOWN_FUNCTION
    47: 404,  # UNKNOWN_IDENTIFIER
    53: 400,  # TYPE_MISMATCH
    60: 404,  # UNKNOWN_TABLE
    62: 400,  # SYNTAX_ERROR
    73: 400,  # UNKNOWN_FORMAT
    81: 404,  # UNKNOWN_DATABASE
    456: 400,  # UNKNOWN_QUERY_PARAMETER
    457: 400,  # BAD_QUERY_PARAMETER
}
"""As a ClickHouse server answers; everything else is 500."""
CONTENT_TYPES = {
    "JSON": "application/json",
    "JSONCompact": "application/json",
    "JSONEachRow": "application/x-ndjson",
    "CSV": "text/csv",
    "CSVWithNames": "text/csv",
    "TabSeparated": "text/tab-separated-values",
    "TSV": "text/tab-separated-values",
    "TabSeparatedWithNames": "text/tab-separated-values",
    "Pretty": "text/plain",
    "PrettyCompact": "text/plain",
    "Vertical": "text/plain",
}


class Endpoint:
    """The handlers. ``engine`` is None where a ClickHouse server serves queries itself."""

    def __init__(
        self,
        health: Health,
        metrics: SinkMetrics,
        engine: ReadEngine | None,
        *,
        now_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._engine = engine
        self._now_ms = now_ms

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/ping", self.ping)
        app.router.add_get("/", self.query)
        app.router.add_post("/", self.query)
        return app

    async def healthz(self, _: web.Request) -> web.Response:
        """200 while rows are stored, else 503 with the reason."""
        trouble = self._health.trouble(self._now_ms())
        return web.json_response(
            {"status": "red" if trouble else "green", "reason": trouble}, status=503 if trouble else 200
        )

    async def readyz(self, _: web.Request) -> web.Response:
        """200 once the schema is there and the log is followed."""
        ready = self._health.following and self._health.trouble(self._now_ms()) is None
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(
            body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def ping(self, _: web.Request) -> web.Response:
        """As ClickHouse answers it."""
        return web.Response(text="Ok.\n")

    async def query(self, request: web.Request) -> web.Response:
        """One read-only statement: ``query`` and the body, joined as ClickHouse joins them."""
        body = await _body(request)
        given = dict(request.query)
        text = "\n".join(part for part in (given.get("query", ""), body) if part.strip())
        if not text:
            return web.Response(text="Ok.\n")
        query_id = given.get("query_id") or str(uuid.uuid4())
        began_ms = monotonic_ms()
        try:
            answer = await self._answer(request, given, text)
        except QueryFailed as error:
            self._metrics.queries.labels("refused" if error.code == READONLY_CODE else "failed").inc()
            return web.Response(
                text=error.text + "\n",
                status=HTTP_STATUS.get(error.code, 500),
                headers=_headers(query_id, {"X-ClickHouse-Exception-Code": str(error.code)}),
            )
        self._metrics.queries.labels("ok").inc()
        self._metrics.query_seconds.observe((monotonic_ms() - began_ms) / 1000.0)
        summary = {
            "read_rows": str(answer.read_rows),
            "read_bytes": str(answer.read_bytes),
            "elapsed_ns": str(answer.elapsed_ns),
        }
        assert self._engine is not None
        return web.Response(
            body=answer.body,
            headers=_headers(
                query_id,
                {
                    "X-ClickHouse-Format": answer.format,
                    "X-ClickHouse-Timezone": self._engine.timezone,
                    "X-ClickHouse-Summary": json.dumps(summary),
                    "Content-Type": CONTENT_TYPES.get(answer.format, "application/octet-stream"),
                },
            ),
        )

    async def _answer(self, request: web.Request, given: dict[str, str], text: str) -> Answer:
        if self._engine is None:
            raise QueryFailed.refused("This sink writes to a ClickHouse server: send queries there.")
        parameters = {name[6:]: value for name, value in given.items() if name.startswith("param_")}
        settings = {
            name: value
            for name, value in given.items()
            if name not in TRANSPORT_PARAMETERS
            and not name.startswith("param_")
            # ClickHouse's own framing is not spoken here; a client that insists on it must hear so.
            and not (name in ("compress", "decompress") and value == "0")
        }
        database = given.get("database") or request.headers.get("X-ClickHouse-Database") or DATABASE
        default_format = given.get("default_format") or request.headers.get("X-ClickHouse-Format")
        return await self._engine.query(
            text,
            default_format=default_format or "TabSeparated",
            parameters=parameters,
            settings=settings,
            database=database,
        )


def _headers(query_id: str, more: dict[str, str]) -> dict[str, str]:
    safe_id = "".join(char for char in query_id if char.isalnum() or char in "-_.")[:100]
    return {
        "X-ClickHouse-Query-Id": safe_id,
        "X-ClickHouse-Server-Display-Name": "tokenfleet-sink",
        "X-Content-Type-Options": "nosniff",
        **more,
    }


async def _body(request: web.Request) -> str:
    try:
        return (await request.read()).decode("utf-8")
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(text="The statement is not UTF-8.\n") from None
