"""The HTTP face of an emulated instance: vLLM's routes, and admin routes for tests where asked for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol
from uuid import uuid4

import structlog
from aiohttp import web

from sim.engine import frontend_ms
from sim.engines.answers import DONE, SseWriter, whole_answer
from sim.engines.errors import ApiError, bad_request
from sim.engines.realtime import LiveRequest, RealtimeEngine
from sim.engines.requests import ParsedRequest, parse_chat, parse_completion
from sim.engines.spec import InstanceSpec

VLLM_VERSION: Final = "0.32.0"
_MAX_BODY_BYTES: Final = 64 * 2**20
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SSE_TYPE: Final = "text/event-stream; charset=utf-8"

_log = structlog.get_logger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServedInstance(Protocol):
    """What the routes need to know of the instance behind them."""

    @property
    def spec(self) -> InstanceSpec: ...

    @property
    def engine(self) -> RealtimeEngine: ...

    def state(self) -> dict[str, Any]: ...

    def restart_soon(self, down_ms: float) -> None: ...


def build_app(instance: ServedInstance, *, admin: bool) -> web.Application:
    """The application of one instance; ``admin`` adds the ``/emulator/`` routes."""
    app = web.Application(middlewares=[_openai_errors], client_max_size=_MAX_BODY_BYTES)
    routes = _Routes(instance)
    app.add_routes(
        [
            web.post("/v1/chat/completions", routes.chat),
            web.post("/v1/completions", routes.completion),
            web.get("/v1/models", routes.models),
            web.get("/metrics", routes.metrics),
            web.get("/health", routes.health),
            web.get("/version", routes.version),
        ]
    )
    if admin:
        app.add_routes(
            [
                web.get("/emulator/state", routes.state),
                web.post("/emulator/restart", routes.restart),
                web.post("/emulator/freeze", routes.freeze),
            ]
        )
    return app


@web.middleware
async def _openai_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Every error is a JSON body in OpenAI's format; none ends the server."""
    try:
        return await handler(request)
    except ApiError as error:
        failure = error
    except web.HTTPException as error:
        if error.status < 400:
            raise
        failure = ApiError(error.status, f"{error.reason}: {request.method} {request.path}", "HTTPError")
    except ConnectionResetError:
        raise  # the client went away: nobody is left to answer
    except Exception:
        _log.exception("an emulated engine could not answer", path=request.path)
        failure = ApiError(500, "The emulated engine failed; its log says why.", "InternalServerError")
    return web.json_response(failure.body(), status=failure.status)


class _Routes:
    def __init__(self, instance: ServedInstance) -> None:
        self._instance = instance
        self._created_s = int(time.time())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        arrival_ms = RealtimeEngine.now_ms()
        parsed = parse_chat(await request.read(), self._instance.spec)
        return await self._answer(request, parsed, f"chatcmpl-{uuid4().hex[:16]}", arrival_ms)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        arrival_ms = RealtimeEngine.now_ms()
        parsed = parse_completion(await request.read(), self._instance.spec)
        return await self._answer(request, parsed, f"cmpl-{uuid4().hex[:16]}", arrival_ms)

    async def models(self, _request: web.Request) -> web.Response:
        spec = self._instance.spec
        card = {
            "id": spec.model,
            "object": "model",
            "created": self._created_s,
            "owned_by": "vllm",
            "root": spec.model,
            "parent": None,
            "max_model_len": spec.context_tokens,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def metrics(self, _request: web.Request) -> web.Response:
        body = self._instance.engine.metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VLLM_VERSION})

    async def state(self, _request: web.Request) -> web.Response:
        return web.json_response(self._instance.state())

    async def restart(self, request: web.Request) -> web.Response:
        """``down_ms``: how long the port stays closed (default 0: only the engine's state is lost)."""
        self._instance.restart_soon(_milliseconds(request, "down_ms", default=0.0))
        return web.json_response({"restarting": self._instance.spec.instance})

    async def freeze(self, request: web.Request) -> web.Response:
        """``ms``: how long the step loop stands still (0: go on)."""
        self._instance.engine.freeze(_milliseconds(request, "ms", default=None))
        return web.json_response({"frozen": self._instance.engine.frozen})

    async def _answer(
        self, request: web.Request, parsed: ParsedRequest, request_id: str, arrival_ms: float
    ) -> web.StreamResponse:
        """Run a valid request, streamed or not. A client that goes away cancels this coroutine."""
        engine = self._instance.engine
        spec = self._instance.spec
        created_s = int(time.time())
        writer = SseWriter(parsed, request_id, spec.model, created_s) if parsed.stream else None
        response: web.StreamResponse | None = None
        if writer is not None and parsed.kind == "chat":
            # vLLM opens a chat stream before the request is admitted: later errors come as events.
            response = await _open_stream(request)
        await asyncio.sleep(frontend_ms(parsed.generation.prompt_tokens) / 1e3 / spec.speed)
        try:
            live = engine.open(parsed.generation, arrival_ms, per_token=parsed.stream)
        except ApiError as error:
            if response is None:
                raise
            return await _end_with_error(response, error)
        try:
            if writer is None:
                await live.more(0)
                return web.json_response(whole_answer(parsed, request_id, spec.model, created_s))
            return await _stream(response or await _open_stream(request), live, writer)
        finally:
            engine.close(live)


async def _open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": _SSE_TYPE, "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


async def _stream(response: web.StreamResponse, live: LiveRequest, writer: SseWriter) -> web.StreamResponse:
    """Write chunks as tokens appear; what piled up behind a slow client goes out in one write."""
    sent = 0
    total = len(live.generation.words)
    while sent < total:
        try:
            ready = await live.more(sent)
        except ApiError as error:
            return await _end_with_error(response, error)
        data = writer.chunks(sent, ready)
        sent = ready
        await response.write(data if sent < total else data + writer.closing())
    await response.write_eof()
    return response


async def _end_with_error(response: web.StreamResponse, error: ApiError) -> web.StreamResponse:
    await response.write(error.sse() + DONE)
    await response.write_eof()
    return response


def _milliseconds(request: web.Request, name: str, default: float | None) -> float:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3_600_000:
        raise bad_request(f"{name} must be a number of milliseconds from 0 to 3600000.", name)
    return value
