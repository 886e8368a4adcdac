"""One request to an engine: open it, read its first bytes, tell a refusal from an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from router.sse import StreamMeter
from transport.clock import now_ms

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""An answer in one piece is held in memory until it is whole; a longer one is no completion."""
_PASSED_ON = ("traceparent", "tracestate", "Accept-Language")
_RETRYABLE = (429, 503)


class NotTaken(Exception):  # noqa: N818 - reads as what happened
    """The engine did not take the request: nothing of an answer has been seen, another may be tried.

    ``status`` is what it answered, or None where the connection failed; ``refused`` is False where a
    connection that was open broke, which may say nothing about the engine (it may have been idle too long).
    """

    def __init__(self, rule: str, *, status: int | None = None, refused: bool = True) -> None:
        super().__init__(rule)
        self.rule = rule
        self.status = status
        self.refused = refused


@dataclass(slots=True)
class Answer:
    """An answer that has begun. ``first`` are its first bytes, already in ``meter``."""

    response: aiohttp.ClientResponse
    streamed: bool
    first: bytes


class Engines:
    """The HTTP session to all engines: no limit on connections, no buffering, no following of redirects."""

    def __init__(self, *, connect_timeout_ms: float) -> None:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_ms / 1000.0, connect=connect_timeout_ms / 1000.0
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=10.0),
            timeout=timeout,
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def open(
        self, url: str, body: bytes, *, request_id: str, headers: Mapping[str, str], meter: StreamMeter
    ) -> Answer:
        """Send a request and wait for the first bytes of its answer. Raises NotTaken.

        The caller bounds the time, and closes the answer's response.
        """
        sent = {name: headers[name] for name in _PASSED_ON if name in headers}
        sent |= {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "X-Request-Id": request_id,
        }
        try:
            response = await self._session.post(url, data=body, headers=sent, allow_redirects=False)
        except aiohttp.ClientConnectorError:
            raise NotTaken("engine_connection_refused") from None
        except aiohttp.ServerTimeoutError:
            raise NotTaken("engine_connect_timeout") from None
        except (aiohttp.ClientError, OSError):
            raise NotTaken("engine_connection_reset", refused=False) from None
        try:
            return await self._begun(response, meter)
        except BaseException:
            response.close()
            raise

    async def _begun(self, response: aiohttp.ClientResponse, meter: StreamMeter) -> Answer:
        if response.status in _RETRYABLE:
            raise NotTaken(f"engine_status_{response.status}", status=response.status)
        streamed = response.status == 200 and response.content_type == "text/event-stream"
        try:
            if streamed:
                first = await response.content.readany()
                meter.feed(first, now_ms())
            else:
                first = await _whole(response)
        except (aiohttp.ClientError, OSError):
            raise NotTaken("engine_connection_reset", refused=False) from None
        if streamed and meter.failed and not meter.content_chunks and meter.error_code in _RETRYABLE:
            # vLLM refuses a streamed chat with status 200 and an error event (its admission limit).
            raise NotTaken(f"engine_stream_error_{meter.error_code}", status=meter.error_code)
        if not streamed and response.status == 200:
            meter.take_body(first)
        return Answer(response, streamed, first)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await response.content.readany():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return b"".join(parts)


def body_for(raw: bytes, asked_model: str, served_model: str | None) -> bytes:
    """The body that the engine gets: the client's own bytes, unless the engine knows the model by another
    name than was asked for; then the same document with that name."""
    if served_model is None or served_model == asked_model:
        return raw
    document = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    document["model"] = msgspec.Raw(msgspec.json.encode(served_model))
    return msgspec.json.encode(document)
