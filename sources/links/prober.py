"""One probe of one router: a GET of its health over a kept-alive connection, bounded in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiohttp

from sources.links.window import Attempt
from transport.clock import monotonic_ms, now_ms

_KEEP_ALIVE_S = 75.0
_BODY_BYTES = 64 * 1024


def open_session() -> aiohttp.ClientSession:
    """A session for probes: connections are kept, and each request knows whether it had one."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trace_configs=[trace],
    )


async def probe(session: aiohttp.ClientSession, url: str, timeout_s: float) -> Attempt:
    """Ask a router for its health. Any HTTP answer will do: 503 says it is not well, yet it was reached.

    The time to the answer's headers is one round trip where the connection was there already. Where it was
    not, a second request follows at once, so that a first look measures too.
    """
    try:
        async with asyncio.timeout(timeout_s):
            rtt_ms = await _get(session, url)
            if rtt_ms is None:
                rtt_ms = await _get(session, url)
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
        return Attempt(now_ms(), answered=False)
    return Attempt(now_ms(), answered=True, rtt_ms=rtt_ms)


async def _get(session: aiohttp.ClientSession, url: str) -> float | None:
    """Milliseconds to the answer; None where it had to connect first."""
    reused = SimpleNamespace(connection=False)
    began_ms = monotonic_ms()
    async with session.get(
        f"{url.rstrip('/')}/healthz", allow_redirects=False, trace_request_ctx=reused
    ) as response:
        took_ms = monotonic_ms() - began_ms
        # Read to the end, else the connection can't be used again; a body without one is not worth it.
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > _BODY_BYTES:
                response.close()
                break
    return took_ms if reused.connection else None


async def _note_reuse(
    _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.connection = True
