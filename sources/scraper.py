"""One scrape of one engine over HTTP: bounded in time and size, never an exception."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

import aiohttp

from sources.engines.mapping import Mapping
from sources.prometheus_text import MAX_BYTES
from transport.clock import monotonic_ms, now_ms

FailureKind = Literal["refused", "timeout", "status", "too_large", "not_metrics", "unhealthy"]

# Plain text only, uncompressed: no OpenMetrics exemplars to parse, no decompression to bound.
HEADERS = {"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a scrape gave nothing. ``unhealthy``: the engine itself says that it is not well."""

    kind: FailureKind
    sentence: str


@dataclass(frozen=True, slots=True)
class Scrape:
    """What came back. Exactly one of ``body`` and ``failure`` is set."""

    at_ms: int
    scrape_ms: float
    body: bytes | None = None
    boot_token: str | None = None
    failure: Failure | None = None


async def scrape(
    session: aiohttp.ClientSession,
    url: str,
    mapping: Mapping,
    *,
    timeout_s: float = 1.0,
    max_bytes: int = MAX_BYTES,
    ask_health: bool = False,
) -> Scrape:
    """Read an engine's metrics page (and with ``ask_health`` its health first).

    ``timeout_s`` bounds the whole. vLLM's page goes on answering for seconds after its engine died, while
    its health says 503 at once: so a 5xx from the health path is a failure whatever the page says.
    """
    began_ms = monotonic_ms()
    body: bytes | None = None
    token: str | None = None
    failure: Failure | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if ask_health:
                failure = await _health(session, url + mapping.health_path)
            if failure is None:
                body, token, failure = await _metrics(session, url + mapping.metrics_path, mapping, max_bytes)
    except TimeoutError:
        body, failure = None, Failure("timeout", f"{url} did not answer within {timeout_s:g} s.")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        body, failure = None, Failure("refused", f"{url} can't be reached: {type(error).__name__}.")
    return Scrape(now_ms(), monotonic_ms() - began_ms, body, token, failure)


async def _health(session: aiohttp.ClientSession, url: str) -> Failure | None:
    async with session.get(url, allow_redirects=False) as response:
        if response.status >= 500:
            return Failure("unhealthy", f"{url} answers {response.status}: the engine says it is not well.")
    return None


async def _metrics(
    session: aiohttp.ClientSession, url: str, mapping: Mapping, max_bytes: int
) -> tuple[bytes | None, str | None, Failure | None]:
    async with session.get(url, headers=HEADERS, allow_redirects=False) as response:
        if response.status != 200:
            return None, None, Failure("status", f"{url} answers {response.status}, not 200.")
        if response.content_type == "text/html":
            return None, None, Failure("not_metrics", f"{url} answers an HTML page, not metrics.")
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                response.close()
                sentence = f"{url} answers more than {max_bytes // 1024} kB; refused unread."
                return None, None, Failure("too_large", sentence)
        token = response.headers.get(mapping.boot_header) if mapping.boot_header else None
        return b"".join(parts), token, None
