"""The agent's own HTTP: health, readiness, metrics."""

from __future__ import annotations

from aiohttp import web

from sources.agent import SourceAgent


def application(agent: SourceAgent) -> web.Application:
    """``/healthz`` (alive), ``/readyz`` (503 with reasons until ready) and ``/metrics``."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "agent": agent.settings.agent_id, "boot": agent.boot})

    async def readyz(_: web.Request) -> web.Response:
        reasons = agent.unready()
        state = {watch.config.instance: watch.reachable for watch in agent.watches()}
        body = {"ready": not reasons, "reasons": reasons, "reachable": state}
        return web.json_response(body, status=503 if reasons else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=agent.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app
