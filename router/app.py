"""The router's parts put together, and its HTTP routes."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from minds.leases import Holder
from router.asks import CHAT_PATH, COMPLETIONS_PATH
from router.attempt import ClientGone
from router.gate import AdmissionGate
from router.health import Health, TablesFeed
from router.heartbeat import Heartbeat, RowSink
from router.journal import EventSink, Journal
from router.metrics import RouterMetrics
from router.options import RouterOptions
from router.picks import Picks
from router.placing import Placer
from router.proxy import Desk, Proxy
from router.refusals import Refusal
from router.tables import FleetTables
from router.upstream import Engines
from router.views import Views
from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Parts:
    """A wired router; ``app`` serves it."""

    app: web.Application
    desk: Desk
    gate: AdmissionGate
    health: Health
    heartbeat: Heartbeat
    picks: Picks
    journal: Journal


def build(
    options: RouterOptions,
    *,
    boot: str,
    boot_started_at_ms: int,
    tables: FleetTables,
    feed: TablesFeed,
    events: EventSink,
    rows: RowSink,
    engines: Engines,
    url: str,
    metrics: RouterMetrics,
) -> Parts:
    """Wire a router. Nothing is started: serve ``app``, then start the heartbeat."""
    journal = Journal(
        events,
        router=options.router,
        boot=boot,
        entry_region=options.entry_region,
        ack_wait_ms=options.ack_wait_ms,
        metrics=metrics,
    )
    health = Health(feed, silent_after_ms=options.silent_after_ms, log_degraded=lambda: journal.degraded)
    gate = AdmissionGate(
        Holder(options.router, boot),
        policy=lambda: tables.policy,
        queue_limit=options.queue_limit,
        on_want=lambda: heartbeat.soon(),
        can_wait=lambda: not health.silent,
    )
    placer = Placer(tables, gate, metrics, entry_region=options.entry_region, silent=lambda: health.silent)
    desk = Desk(options, tables, placer, journal, metrics, engines, stopping=lambda: health.stopping)
    heartbeat = Heartbeat(
        rows,
        gate,
        router=options.router,
        boot=boot,
        boot_started_at_ms=boot_started_at_ms,
        entry_region=options.entry_region,
        url=url,
        mode=lambda: health.mode,
        in_flight=lambda: desk.in_flight,
        every_ms=options.heartbeat_ms,
        min_gap_ms=options.heartbeat_min_gap_ms,
    )

    def on_lease(row: object) -> None:
        if gate.holder.received(row, monotonic_ms()):  # type: ignore[arg-type]
            gate.pump()

    tables.on_lease = on_lease
    picks = Picks(desk)
    views = Views(tables, metrics, health, lambda: gate.queued)
    app = web.Application(client_max_size=options.max_body_bytes, middlewares=[_refusals(metrics)])
    proxy = Proxy(desk)
    app.add_routes(
        [
            web.post(CHAT_PATH, proxy.handle),
            web.post(COMPLETIONS_PATH, proxy.handle),
            web.post("/v1/pick", picks.pick),
            web.post("/v1/outcome", picks.report),
            web.get("/v1/models", views.models),
            web.get("/v1/tables/{name}", views.table),
            web.get("/healthz", views.healthz),
            web.get("/readyz", views.readyz),
            web.get("/metrics", views.metrics),
        ]
    )
    return Parts(app, desk, gate, health, heartbeat, picks, journal)


def _refusals(metrics: RouterMetrics) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every error has the OpenAI shape; what is unexpected is logged without the request's content."""
        try:
            return await handler(request)
        except Refusal as refusal:
            found = refusal
        except web.HTTPRequestEntityTooLarge:
            found = Refusal(413, "body_too_large", "The body is larger than this router takes.")
        except web.HTTPException as error:
            found = Refusal(error.status, "http_error", error.reason)
        except ClientGone:
            return web.Response(status=499, reason="Client Closed Request")
        except Exception:
            log.exception("request_failed", path=request.path)
            found = Refusal(500, "router_error", "The router failed on this request; its log says more.")
        metrics.refusals.labels(str(found.status), found.rule).inc()
        return found.response()

    return answer
