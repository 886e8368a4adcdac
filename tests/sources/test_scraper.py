"""Engines that misbehave over HTTP: each is one typed failure, bounded in time and size."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from sources.engines.mapping import mapping_of
from sources.http_client import HttpClient
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
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as one:
        yield one


def _text(text: str, **more: object) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, **more)  # type: ignore[arg-type]

    return answer


async def test_a_good_page_comes_whole(serve: Serve, client: HttpClient) -> None:
    asked: list[str] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(text="a 1\n", headers={"Process-Start-Time-Unix": "1442"})

    url = await serve(page)
    got = await scrape(client, url, LLAMA_CPP)
    assert (got.body, got.failure, got.boot_token) == (b"a 1\n", None, "1442")
    assert (await scrape(client, url, VLLM)).boot_token is None
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
    serve: Serve, client: HttpClient, text: str, more: dict[str, object], kind: str
) -> None:
    got = await scrape(client, await serve(_text(text, **more)), VLLM)
    assert got.body is None
    assert got.failure is not None
    assert got.failure.kind == kind


async def test_ten_megabytes_are_cut_off(serve: Serve, client: HttpClient) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(160):
            await response.write(b"x" * 65_536)
            sent += 65_536
        return response

    got = await scrape(client, await serve(flood), VLLM, timeout_s=10.0, max_bytes=256 * 1024)
    assert got.failure is not None
    assert got.failure.kind == "too_large"
    assert sent < 160 * 65_536


async def test_a_slow_engine_is_given_up(serve: Serve, client: HttpClient) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(600):
            await response.write(b"a 1\n")
            await asyncio.sleep(0.05)
        return response

    got = await scrape(client, await serve(drip), VLLM, timeout_s=0.2)
    assert got.failure is not None
    assert got.failure.kind == "timeout"


async def test_nobody_listens(client: HttpClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused, and nobody else can take it
        got = await scrape(client, f"http://127.0.0.1:{taken.getsockname()[1]}", VLLM)
    assert got.failure is not None
    assert got.failure.kind == "refused"


async def test_not_http_and_a_body_cut_short(client: HttpClient) -> None:
    answers = [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n"]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        kinds = [(await scrape(client, url, VLLM)).failure for _ in range(2)]
    assert [failure.kind for failure in kinds if failure is not None] == ["refused", "refused"]


async def test_metrics_answer_but_health_says_503(serve: Serve, client: HttpClient) -> None:
    url = await serve(_text("a 1\n"), _text("", status=503))
    got = await scrape(client, url, VLLM, ask_health=True)
    assert got.body is None
    assert got.failure is not None
    assert got.failure.kind == "unhealthy"
    assert (await scrape(client, url, VLLM)).failure is None


async def test_an_engine_without_a_health_page_is_judged_by_its_metrics(
    serve: Serve, client: HttpClient
) -> None:
    got = await scrape(client, await serve(_text("a 1\n")), VLLM, ask_health=True)
    assert got.body == b"a 1\n"


async def test_metrics_may_have_a_port_of_their_own_and_health_stays_with_the_engine(
    serve: Serve, client: HttpClient
) -> None:
    engine, page = await serve(_text("no"), _text("", status=503)), await serve(_text("a 1\n"))
    got = await scrape(client, engine, VLLM, metrics_url=page)
    assert got.body == b"a 1\n"
    got = await scrape(client, engine, VLLM, metrics_url=page, ask_health=True)
    assert got.failure is not None
    assert got.failure.kind == "unhealthy"


async def test_an_answer_that_is_compressed_was_not_asked_for(serve: Serve, client: HttpClient) -> None:
    url = await serve(_text("a 1\n", headers={"Content-Encoding": "br"}))
    got = await scrape(client, url, VLLM)
    assert got.failure is not None
    assert got.failure.kind == "not_metrics"
