"""One attempt over HTTP: send the request, read the stream, say how it ended; the network never raises."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
import msgspec

from sim.loadgen.ledger import AttemptRecord
from sim.loadgen.options import LoadOptions
from sim.loadgen.retry import AttemptEnd, end_of_status, parse_retry_after_ms
from sim.loadgen.sse import CompletionStream, stream_error
from sim.workloads.plan import IntentSpec
from sim.workloads.prompts import prompt_text

_ERROR_BODY_BYTES = 4_096  # of an error answer that are read; the rest says nothing new
_TRAILER_S = 1.0  # how long a whole answer may keep its connection open after [DONE]


class RunClock:
    """Wall time that never steps back: ms since 1970 at the start, advanced by the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ms = time.time() * 1_000.0 - time.monotonic() * 1_000.0

    def epoch_ms(self) -> float:
        """Now, in ms since 1970."""
        return self._offset_ms + time.monotonic() * 1_000.0

    def loop_time_s(self, epoch_ms: float, loop: asyncio.AbstractEventLoop) -> float:
        """The event loop's time (s) at the instant `epoch_ms`."""
        return loop.time() + (epoch_ms - self.epoch_ms()) / 1_000.0


@dataclass(frozen=True, slots=True)
class AttemptRequest:
    """What one attempt sends and how long its client waits; instants are ms since 1970."""

    url: str
    headers: dict[str, str]
    body: bytes
    first_token_by_epoch_ms: float
    finish_by_epoch_ms: float
    cancel_after_tokens: int | None


def request_body(spec: IntentSpec, options: LoadOptions) -> bytes:
    """The OpenAI-style JSON body of an intent: the same bytes at every attempt."""
    prompt = prompt_text(spec.input_tokens, spec.prefix_blocks, spec.intent_id)
    content = (
        {"messages": [{"role": "user", "content": prompt}]}
        if options.endpoint == "chat"
        else {"prompt": prompt}
    )
    return msgspec.json.encode(
        {
            "model": options.model,
            **content,
            "max_tokens": spec.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def request_headers(
    spec: IntentSpec,
    options: LoadOptions,
    *,
    attempt: int,
    start_epoch_ms: float,
    left_ms: float,
    speed: float,
) -> dict[str, str]:
    """The headers of one attempt. `left_ms`: wall-clock budget left; SLOs are sent in wall-clock ms too."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Idempotency-Key": spec.intent_id,
        "x-tokenfleet-attempt": str(attempt),
        "x-tokenfleet-intent-start-ms": str(round(start_epoch_ms)),
        "x-tokenfleet-class": spec.service_class,
        "x-tokenfleet-deadline-ms": str(max(0, round(left_ms))),
        "x-slo-ttft-ms": f"{spec.ttft_slo_ms / speed:g}",
        "x-slo-tpot-ms": f"{spec.tpot_slo_ms / speed:g}",
    }
    if spec.residency is not None:
        headers["x-tokenfleet-residency"] = spec.residency
    key = options.tenant_keys.get(spec.tenant)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def trace_sent() -> aiohttp.TraceConfig:
    """Tells each attempt's record that its request went out; the session of `play_attempt` needs it."""

    async def sent(
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        record: AttemptRecord = context.trace_request_ctx
        record.sent = True

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(sent)
    return trace


async def play_attempt(
    session: aiohttp.ClientSession, request: AttemptRequest, record: AttemptRecord, clock: RunClock
) -> CompletionStream:
    """Make the attempt and fill `record` (status, end, error, times); the stream holds what came.

    Only cancellation of the task is raised; the record is filled then as well.
    """
    stream = CompletionStream()
    loop = asyncio.get_running_loop()
    first_wait_until_ms = min(request.first_token_by_epoch_ms, request.finish_by_epoch_ms)
    patience = asyncio.timeout_at(clock.loop_time_s(first_wait_until_ms, loop))
    try:
        async with (
            patience,
            session.post(
                request.url, data=request.body, headers=request.headers, trace_request_ctx=record
            ) as response,
        ):
            _note_headers(record, response)
            if response.status != 200:
                record.end = end_of_status(response.status)
                record.error = _error_text(await response.content.read(_ERROR_BODY_BYTES))
            elif response.content_type != "text/event-stream":
                record.end = AttemptEnd.REJECTED
                record.error = f"the answer is {response.content_type}, not an event stream"
            else:
                await _read(response, stream, request, record, patience, clock)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        record.end, record.error = AttemptEnd.REFUSED, str(error)
    except TimeoutError:
        record.end = AttemptEnd.TIMEOUT if record.sent else AttemptEnd.REFUSED
        if not record.sent:
            record.error = "no connection in time"
        elif stream.first_token_ms is None:
            record.error = "no first token in time"
        else:
            record.error = "not finished by the deadline"
    except (aiohttp.ClientError, OSError) as error:
        record.end = AttemptEnd.DROPPED
        record.error = str(error) or type(error).__name__
    finally:
        record.finish_epoch_ms = clock.epoch_ms()
        record.first_token_epoch_ms = stream.first_token_ms
        record.tokens = stream.tokens
        record.cached_tokens = stream.cached_tokens
    _judge(stream, record)
    return stream


async def _read(
    response: aiohttp.ClientResponse,
    stream: CompletionStream,
    request: AttemptRequest,
    record: AttemptRecord,
    patience: asyncio.Timeout,
    clock: RunClock,
) -> None:
    """Read the body to its end, or to the point at which the client walks away."""
    loop = asyncio.get_running_loop()
    waits_for_first, ended = True, False
    cancel_after = request.cancel_after_tokens
    async for data in response.content.iter_any():
        stream.feed(data, clock.epoch_ms())
        if waits_for_first and stream.first_token_ms is not None:
            waits_for_first = False
            patience.reschedule(clock.loop_time_s(request.finish_by_epoch_ms, loop))
        if cancel_after is not None and stream.content_chunks >= cancel_after and not stream.finished:
            record.end = AttemptEnd.CANCELLED
            response.close()
            return
        if not ended and (stream.done or stream.error is not None):
            # Read on to the end of the body, else the router would see its client hang up on a whole answer.
            ended = True
            patience.reschedule(min(patience.when() or float("inf"), loop.time() + _TRAILER_S))
    stream.close(clock.epoch_ms())


def _judge(stream: CompletionStream, record: AttemptRecord) -> None:
    """The end of an answered attempt, from what the stream said: it outranks how the connection ended."""
    if record.end is AttemptEnd.CANCELLED or (record.status is not None and record.status != 200):
        return
    if stream.error is not None:
        code = stream.error.code
        record.end = end_of_status(code) if code is not None and code >= 400 else AttemptEnd.ERROR
        record.error = stream.error.message
    elif stream.finished and stream.first_token_ms is not None:
        record.end, record.error = AttemptEnd.OK, None
    elif stream.finished:
        record.end, record.error = AttemptEnd.ERROR, "the answer has no token"
    elif record.end is None:
        record.end, record.error = AttemptEnd.DROPPED, "the stream ended before the answer did"


def _note_headers(record: AttemptRecord, response: aiohttp.ClientResponse) -> None:
    headers = response.headers
    record.status = response.status
    record.decision_id = headers.get("x-tokenfleet-decision")
    record.instance = headers.get("x-tokenfleet-instance")
    record.region = headers.get("x-tokenfleet-region")
    record.retry_after_ms = parse_retry_after_ms(headers.get("Retry-After"))


def _error_text(body: bytes) -> str:
    """The message of an OpenAI-style error body, else its first characters."""
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        parsed = body.decode(errors="replace").strip() or "no message"
    return stream_error(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed).message
