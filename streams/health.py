"""What a worker says of itself: health with reasons, readiness, and Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

log = structlog.get_logger(__name__)

Check = Callable[[], str | None]
"""Says in a sentence what is wrong, or None."""


class Metrics:
    """The worker's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.events = Counter("tokenfleet_streams_events", "Events folded.", ["topic"], registry=r)
        self.partials = Counter("tokenfleet_streams_partials", "Partials flushed.", registry=r)
        self.rollups = Counter("tokenfleet_streams_rollups", "Rollups written.", registry=r)
        self.applied = Counter("tokenfleet_streams_rollups_applied", "Rollups applied.", registry=r)
        self.skipped = Counter(
            "tokenfleet_streams_rollups_skipped", "Keys of rollups that had been applied before.", registry=r
        )
        self.recuts = Counter(
            "tokenfleet_streams_intervals_discarded", "Intervals discarded and cut again.", registry=r
        )
        self.dead = Counter("tokenfleet_streams_dead_letters", "Dead letters.", ["topic"], registry=r)
        self.rows = Counter("tokenfleet_streams_rows_published", "Rows published.", ["topic"], registry=r)
        self.lost = Counter("tokenfleet_streams_lost_outcomes", "Decisions closed as lost.", registry=r)
        self.table_keys = Gauge("tokenfleet_streams_table_keys", "Keys held.", ["table"], registry=r)
        self.flush_ms = Histogram(
            "tokenfleet_streams_flush_ms",
            "From the end of an interval to its committed offsets, in milliseconds.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000),
            registry=r,
        )


class Health:
    """Failures that stay, and checks that come and go."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def fail(self, component: str, reason: str) -> None:
        """A component has stopped for good; the worker must be restarted. The first reason stays."""
        if component not in self.failures:
            log.error("component_failed", component=component, reason=reason)
            self.failures[component] = reason

    def add(self, component: str, *, live: Check | None = None, ready: Check | None = None) -> None:
        """Ask this component whenever somebody asks us."""
        if live is not None:
            self._live[component] = live
        if ready is not None:
            self._ready[component] = ready

    def problems(self) -> dict[str, str]:
        """Why the worker should be restarted; empty where it is well."""
        found = {name: said for name, check in self._live.items() if (said := check())}
        return found | self.failures

    def not_ready(self) -> dict[str, str]:
        """Why the worker does not serve yet; empty where it does."""
        return {name: said for name, check in self._ready.items() if (said := check())} | self.failures


async def serve_health(health: Health, metrics: Metrics, host: str, port: int) -> web.AppRunner:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics``; OSError where the port is taken."""

    def answer(reasons: dict[str, str]) -> web.Response:
        return web.json_response({"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def healthz(_: web.Request) -> web.Response:
        return answer(health.problems())

    async def readyz(_: web.Request) -> web.Response:
        return answer(health.not_ready())

    async def metricsz(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metricsz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
