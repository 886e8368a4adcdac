"""One scrape of one engine over HTTP: bounded in time and size, never an exception."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from sources.engines.mapping import Mapping
from sources.http_client import HttpClient, HttpError, TooLarge
from sources.prometheus_text import MAX_BYTES
from transport.clock import monotonic_ms, now_ms

FailureKind = Literal["refused", "timeout", "status", "too_large", "not_metrics", "unhealthy"]

# Plain text only, uncompressed: no OpenMetrics exemplars to parse, no decompression to bound.
HEADERS = {"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity", "User-Agent": "tokenfleet"}
MAX_HEALTH_BYTES = 64 * 1024


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
    client: HttpClient,
    url: str,
    mapping: Mapping,
    *,
    metrics_url: str | None = None,
    timeout_s: float = 1.0,
    max_bytes: int = MAX_BYTES,
    ask_health: bool = False,
) -> Scrape:
    """Read an engine's metrics page (and with ``ask_health`` its health first).

    ``metrics_url`` is the page's base address where it has a port of its own. ``timeout_s`` bounds the whole.
    vLLM's page goes on answering for seconds after its engine died, while its health says 503 at once: so a
    5xx from the health path is a failure whatever the page says.
    """
    began_ms = monotonic_ms()
    body: bytes | None = None
    token: str | None = None
    failure: Failure | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if ask_health:
                failure = await _health(client, url, mapping.health_path)
            if failure is None:
                body, token, failure = await _metrics(client, metrics_url or url, mapping, max_bytes)
    except TimeoutError:
        body, failure = None, Failure("timeout", f"{url} did not answer within {timeout_s:g} s.")
    except TooLarge:
        body = None
        failure = Failure(
            "too_large", f"{url} answers more than {max_bytes // 1024} kB; not read to its end."
        )
    except HttpError as error:
        body, failure = None, Failure("refused", f"{url} gives no usable answer: {error}.")
    except (OSError, ValueError) as error:
        body, failure = None, Failure("refused", f"{url} can't be reached: {type(error).__name__}.")
    return Scrape(now_ms(), monotonic_ms() - began_ms, body, token, failure)


async def _health(client: HttpClient, url: str, path: str) -> Failure | None:
    try:
        answer = await client.get(url, path, max_bytes=MAX_HEALTH_BYTES)
    except TooLarge:
        return None  # a long health page is odd, but it says nothing against the engine
    if answer.status >= 500:
        sentence = f"{url}{path} answers {answer.status}: the engine says it is not well."
        return Failure("unhealthy", sentence)
    return None


async def _metrics(
    client: HttpClient, url: str, mapping: Mapping, max_bytes: int
) -> tuple[bytes | None, str | None, Failure | None]:
    answer = await client.get(url, mapping.metrics_path, headers=HEADERS, max_bytes=max_bytes)
    where = url + mapping.metrics_path
    if answer.status != 200:
        return None, None, Failure("status", f"{where} answers {answer.status}, not 200.")
    if answer.headers.get("content-type", "").lower().startswith("text/html"):
        return None, None, Failure("not_metrics", f"{where} answers an HTML page, not metrics.")
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        return None, None, Failure("not_metrics", f"{where} answers compressed, which was not asked for.")
    token = answer.headers.get(mapping.boot_header.lower()) if mapping.boot_header else None
    return answer.body, token, None
