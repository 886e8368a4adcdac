"""What a router shows: models, its tables, health, readiness and metrics."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from router.health import Health
from router.metrics import RouterMetrics
from router.refusals import Refusal
from router.tables import TABLES, FleetTables
from schemas.topics import POLICY
from transport.clock import now_ms

_SECRET_FIELDS = ("key_sha256",)
"""A digest of a short key could be guessed, so it is not shown."""


class Views:
    """Read-only handlers."""

    def __init__(
        self,
        tables: FleetTables,
        metrics: RouterMetrics,
        health: Health,
        queued: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._metrics = metrics
        self._health = health
        self._queued = queued
        self._by_name = {topic.name.removeprefix("fleet."): topic for topic in TABLES}

    async def models(self, request: web.Request) -> web.Response:
        """``GET /v1/models``: the pools, as OpenAI lists models."""
        ready = self._tables.ready_endpoints(now_ms())
        data = [
            {
                "id": pool,
                "object": "model",
                "owned_by": "tokenfleet",
                "ready_endpoints": count,
                "regions": sorted(self._tables.regions_of(pool)),
            }
            for pool, count in sorted(ready.items())
        ]
        return web.json_response({"object": "list", "data": data})

    async def table(self, request: web.Request) -> web.Response:
        """``GET /v1/tables/{name}``: all rows of a table, each with its quality now."""
        name = request.match_info["name"]
        topic = self._by_name.get(name)
        if topic is None:
            known = ", ".join(sorted(self._by_name))
            raise Refusal(404, "unknown_table", f"There is no such table; there are {known}.")
        at_ms = now_ms()
        rows = []
        for key, row, quality in self._tables.views[topic.name].items(at_ms):
            shown = msgspec.to_builtins(row)
            if topic is POLICY:
                for tenant in shown.get("tenants", ()):
                    for field in _SECRET_FIELDS:
                        tenant.pop(field, None)
            rows.append({"key": key, "quality": quality, **shown})
        answer = {"table": name, "topic": topic.name, "now_ms": at_ms, "rows": rows}
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def healthz(self, request: web.Request) -> web.Response:
        """``GET /healthz``: the process answers."""
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """``GET /readyz``: 200 once the tables are complete; says whether it runs degraded, and why."""
        health = self._health
        ready = health.ready
        answer = {"ready": ready, "mode": health.mode, "reasons": health.reasons()}
        return web.json_response(answer, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """``GET /metrics`` in Prometheus' text format."""
        self._metrics.queued.set(self._queued())
        self._metrics.degraded.set(float(self._health.mode != "normal"))
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
