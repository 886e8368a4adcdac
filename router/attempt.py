"""One dispatched attempt: pass its answer on as it comes, see how it ends, and always record that once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from minds.fleetmind.suspects import Suspects
from router.asks import Ask
from router.journal import Figures, Journal
from router.options import RouterOptions
from router.placing import Placement, Placer
from router.refusals import Refusal, error_event
from router.sse import StreamMeter
from router.upstream import Answer, Engines, NotTaken, body_for
from schemas.decisions import Decision
from schemas.outcomes import Cause
from transport.clock import now_ms

_DRAIN_S = 0.5
"""How long to wait for the end of a stream whose answer is already whole."""


class ClientGone(ConnectionError):  # noqa: N818 - reads as what happened
    """The client's connection is closed, so nothing more can be written to it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Nothing has been sent to the client: try again, at another instance where ``elsewhere``."""

    elsewhere: bool


@dataclass(frozen=True, slots=True)
class AttemptDeps:
    """What attempts share."""

    journal: Journal
    placer: Placer
    engines: Engines
    suspects: Suspects
    options: RouterOptions
    stopping: Callable[[], bool]


class Attempt:
    """Runs once. ``cause`` and ``figures`` say afterwards how it ended."""

    def __init__(
        self,
        deps: AttemptDeps,
        request: web.Request,
        ask: Ask,
        raw: bytes,
        placement: Placement,
        decision: Decision,
        headers: Mapping[str, str],
    ) -> None:
        self._deps = deps
        self._request = request
        self._ask = ask
        self._raw = raw
        self._placement = placement
        self._decision = decision
        self._headers = headers
        self._meter = StreamMeter()
        self._answer: Answer | None = None
        self._response: web.StreamResponse | None = None
        self._rule: str | None = None
        self._ended_at_ms: int | None = None
        self.cause: Cause = "failed"
        self.figures = Figures(queue_ms=placement.queue_ms)

    async def run(self, *, last: bool) -> web.StreamResponse | Retry:
        """Serve the client, or say that another instance should be tried.

        Whatever happens (the client leaves, the engine dies, time is over, the router stops), the place is
        given back and exactly one outcome is recorded, before this returns or raises.
        """
        journal = self._deps.journal
        written = journal.write_ahead(self._decision)
        try:
            return await self._timed(written)
        except NotTaken as failure:
            return await self._not_taken(failure, written, last=last)
        except ClientGone:
            self._cancelled("client_gone")
            return self._response or web.Response(status=499, reason="Client Closed Request")
        except asyncio.CancelledError:
            self._cancelled("client_gone")
            raise
        except (aiohttp.ClientError, OSError) as error:
            return await self._broken("engine_connection_lost", type(error).__name__)
        finally:
            self._settle()

    async def _timed(self, written: asyncio.Task[None]) -> web.StreamResponse:
        """Under the overall deadline, and within the idle time between tokens."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + max(0, self._decision.deadline_at_ms - now_ms()) / 1000.0
        first_s = max(self._deps.options.idle_token_ms, 2 * self._ask.ttft_slo_ms) / 1000.0
        try:
            async with asyncio.timeout_at(min(deadline_s, loop.time() + first_s)) as limit:
                await self._open()
                await self._deps.journal.acked(written)
                return await self._pass_on(limit, deadline_s)
        except TimeoutError:
            if self.cause == "ok" and self._response is not None:
                return self._response  # only the end of its stream could not be written any more
            rule = "deadline" if loop.time() >= deadline_s else "idle_stream"
            return await self._timed_out(rule, written)

    async def _open(self) -> None:
        member = self._placement.member
        url = str(member.row.url).rstrip("/") + self._ask.path
        self._answer = await self._deps.engines.open(
            url,
            body_for(self._raw, self._ask.model, member.row.served_model),
            request_id=self._decision.decision_id,
            headers=self._request.headers,
            meter=self._meter,
        )
        self._deps.suspects.worked(member.instance, member.boot)

    async def _pass_on(self, limit: asyncio.Timeout, deadline_s: float) -> web.StreamResponse:
        answer = self._answer
        assert answer is not None
        status = answer.response.status
        self.figures.status = status
        headers = {
            **self._headers,
            "Content-Type": answer.response.headers.get("Content-Type", "application/json"),
        }
        if not answer.streamed:
            self._judge(status)
            return web.Response(status=status, body=answer.first, headers=headers)
        response = web.StreamResponse(status=status, headers={**headers, "Cache-Control": "no-cache"})
        await self._to_client(response.prepare(self._request))
        self._response = response
        meter, read = self._meter, answer.response.content.readany
        loop, idle_s = asyncio.get_running_loop(), self._deps.options.idle_token_ms / 1000.0
        chunk, tokens = answer.first, 0
        while chunk:
            await self._to_client(response.write(chunk))
            if meter.done:
                self._judge(status)
                break
            if meter.content_chunks != tokens:  # comments keep a connection alive, not a stream
                tokens = meter.content_chunks
                limit.reschedule(min(deadline_s, loop.time() + idle_s))
            chunk = await read()
            meter.feed(chunk, now_ms())
        meter.close(now_ms())
        self._judge(status)
        if not meter.whole and not meter.failed:
            self._rule = "stream_ended_early"
            await self._to_client(
                response.write(error_event(502, self._rule, "The engine's stream broke off."))
            )
        await self._finish_stream(response, answer)
        return response

    async def _finish_stream(self, response: web.StreamResponse, answer: Answer) -> None:
        """End the client's stream, and read the engine's to its end so that the connection can be kept."""
        await self._to_client(response.write_eof())
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await answer.response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            answer.response.close()

    def _judge(self, status: int) -> None:
        """The answer has come as far as it will."""
        meter = self._meter
        if status == 200 and meter.whole:
            self.cause, self._rule = "ok", None
            self._ended_at_ms = self._ended_at_ms or now_ms()
        elif status != 200:
            self.cause, self._rule = "failed", f"engine_status_{status}"
        elif meter.failed:
            self.cause, self._rule = "failed", f"engine_stream_error_{meter.error_code or 'unknown'}"

    async def _to_client(self, writing: Awaitable[object]) -> None:
        try:
            await writing
        except (aiohttp.ClientError, ConnectionError, RuntimeError):
            raise ClientGone("the client's connection is closed") from None

    def _cancelled(self, rule: str) -> None:
        if self.cause == "ok":
            return  # it had all of its answer
        if self._deps.stopping():
            self.cause, self._rule = "failed", "router_stopping"
        else:
            self.cause, self._rule = "cancelled", rule

    async def _not_taken(
        self, failure: NotTaken, written: asyncio.Task[None], *, last: bool
    ) -> web.StreamResponse | Retry:
        member = self._placement.member
        self._deps.suspects.failed(member.instance, member.boot, now_ms())
        self.cause, self._rule = "failed", failure.rule
        if not last and now_ms() < self._decision.deadline_at_ms:
            self.figures.status = failure.status
            return Retry(elsewhere=failure.refused)
        self.figures.status = 503
        await self._deps.journal.acked(written)
        sentence = f"No engine took the request; the last one said {failure.rule}."
        return Refusal(503, failure.rule, sentence, retry_after_s=1).response(self._headers)

    async def _timed_out(self, rule: str, written: asyncio.Task[None]) -> web.StreamResponse:
        self.cause, self._rule = "timeout", rule
        said = "its deadline" if rule == "deadline" else "the limit between tokens"
        return await self._give_up(504, rule, f"The answer did not come within {said}.", written)

    async def _broken(self, rule: str, detail: str) -> web.StreamResponse:
        if self.cause == "ok" and self._response is not None:
            return self._response
        self.cause, self._rule = "failed", rule
        return await self._give_up(502, rule, f"The engine's connection broke ({detail}).", None)

    async def _give_up(
        self, status: int, rule: str, sentence: str, written: asyncio.Task[None] | None
    ) -> web.StreamResponse:
        """Tell the client: inside its stream where that has begun, else as a status."""
        if self._response is None:
            self.figures.status = status
            if written is not None:
                await self._deps.journal.acked(written)
            return Refusal(status, rule, sentence).response(self._headers)
        try:
            async with asyncio.timeout(_DRAIN_S):  # a client that reads nothing must not hold the place
                await self._to_client(self._response.write(error_event(status, rule, sentence)))
                await self._to_client(self._response.write_eof())
        except (TimeoutError, ClientGone):
            if (transport := self._request.transport) is not None:
                transport.abort()
        return self._response

    def _settle(self) -> None:
        """Nothing here waits, so nothing can interrupt it."""
        answer = self._answer
        if answer is not None and not answer.response.content.at_eof():
            answer.response.close()
        meter, figures = self._meter, self.figures
        figures.first_token_at_ms, figures.last_token_at_ms = meter.first_token_ms, meter.last_token_ms
        figures.prompt_tokens, figures.cached_tokens = meter.prompt_tokens, meter.cached_tokens
        figures.output_tokens = meter.output_tokens if answer is not None else None
        self._deps.placer.release(self._placement, ok=self.cause == "ok")
        self._deps.journal.end(
            self._deps.journal.outcome(
                self._decision,
                self.cause,
                started_at_ms=self._placement.dispatched_at_ms,
                rule=self._rule,
                figures=figures,
                at_ms=self._ended_at_ms,
            )
        )
