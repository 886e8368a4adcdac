"""Engines that misbehave over HTTP: each is one typed failure, bounded in time and size."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from sources.engines.mapping import mapping_of
from sources.scraper import scrape

VLLM, LLAMA_CPP = mapping_of("vllm"), mapping_of("llama.cpp")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(metrics: Handler, health: Handler | None = None) -> str:
        app = web.Application()
        app.add_routes([web.get("/metrics", metrics)])
        if health is not None:
            app.add_routes([web.get("/health", health)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


def _text(text: str, **more: object) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, **more)  # type: ignore[arg-type]

    return answer


async def test_a_good_page_comes_whole(serve: Serve, session: aiohttp.ClientSession) -> None:
    asked: list[str] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(text="a 1\n", headers={"Process-Start-Time-Unix": "1442"})

    url = await serve(page)
    got = await scrape(session, url, LLAMA_CPP)
    assert (got.body, got.failure, got.boot_token) == (b"a 1\n", None, "1442")
    assert (await scrape(session, url, VLLM)).boot_token is None
    assert asked == ["identity", "identity"]


@pytest.mark.parametrize(
    ("text", "more", "kind"),
    [
        ("<html>hi</html>", {"content_type": "text/html"}, "not_metrics"),
        ("gone", {"status": 404}, "status"),
        ("", {"status": 302, "headers": {"Location": "/elsewhere"}}, "status"),
    ],
)
async def test_answers_that_are_no_metrics(
    serve: Serve, session: aiohttp.ClientSession, text: str, more: dict[str, object], kind: str
) -> None:
    got = await scrape(session, await serve(_text(text, **more)), VLLM)
    assert got.body is None
    assert got.failure is not None
    assert got.failure.kind == kind


async def test_ten_megabytes_are_cut_off(serve: Serve, session: aiohttp.ClientSession) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(160):
            await response.write(b"x" * 65_536)
            sent += 65_536
        return response

    got = await scrape(session, await serve(flood), VLLM, timeout_s=10.0, max_bytes=256 * 1024)
    assert got.failure is not None
    assert got.failure.kind == "too_large"
    assert sent < 160 * 65_536


async def test_a_slow_engine_is_given_up(serve: Serve, session: aiohttp.ClientSession) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(600):
            await response.write(b"a 1\n")
            await asyncio.sleep(0.05)
        return response

    got = await scrape(session, await serve(drip), VLLM, timeout_s=0.2)
    assert got.failure is not None
    assert got.failure.kind == "timeout"


async def test_nobody_listens(session: aiohttp.ClientSession) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused, and nobody else can take it
        got = await scrape(session, f"http://127.0.0.1:{taken.getsockname()[1]}", VLLM)
    assert got.failure is not None
    assert got.failure.kind == "refused"


async def test_not_http_and_a_body_cut_short(session: aiohttp.ClientSession) -> None:
    answers = [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n"]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        kinds = [(await scrape(session, url, VLLM)).failure for _ in range(2)]
    assert [failure.kind for failure in kinds if failure is not None] == ["refused", "refused"]


async def test_metrics_answer_but_health_says_503(serve: Serve, session: aiohttp.ClientSession) -> None:
    url = await serve(_text("a 1\n"), _text("", status=503))
    got = await scrape(session, url, VLLM, ask_health=True)
    assert got.body is None
    assert got.failure is not None
    assert got.failure.kind == "unhealthy"
    assert (await scrape(session, url, VLLM)).failure is None


async def test_an_engine_without_a_health_page_is_judged_by_its_metrics(
    serve: Serve, session: aiohttp.ClientSession
) -> None:
    got = await scrape(session, await serve(_text("a 1\n")), VLLM, ask_health=True)
    assert got.body == b"a 1\n"
