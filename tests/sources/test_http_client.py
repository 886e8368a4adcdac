"""Framing as RFC 9112 says, whatever way the bytes are cut; connections are kept, and only sound ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.http_client import MAX_HEAD_BYTES, HttpClient, HttpError, TooLarge

Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request with what ``talk`` writes; counts connections and requests."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                await self._talk(head, writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[HttpClient]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, HttpClient() as client:
            yield client


def _says(*pieces: bytes, close: bool = False) -> Talk:
    async def talk(_: bytes, writer: asyncio.StreamWriter) -> None:
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(0.002)  # so that the pieces come apart
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return talk


def _sized(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_one_connection_serves_many_requests() -> None:
    server = Server(_says(_sized(b"a 1\n", b"X-Token: 7\r\n")))
    async with server.open() as client:
        for _ in range(3):
            answer = await client.get(server.url, "/metrics", headers={"Accept": "text/plain"}, max_bytes=99)
            assert (answer.status, answer.body, answer.headers["x-token"]) == (200, b"a 1\n", "7")
    assert server.connections == 1
    host = server.url.removeprefix("http://")
    assert (
        server.requests[0] == f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n".encode()
    )


WHOLE = [
    (_sized(b"a 1\n"), False),
    (CHUNKED + b"2\r\na \r\n2;x=y\r\n1\n\r\n0\r\nX: trailer\r\n\r\n", False),
    (b"HTTP/1.1 200 OK\r\n\r\na 1\n", True),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\na 1\n", True),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + _sized(b"a 1\n"), False),
]


@settings(max_examples=40, deadline=None)
@given(which=st.sampled_from(WHOLE), cuts=st.lists(st.integers(1, 60), max_size=3))
def test_the_same_answer_however_the_bytes_are_cut(which: tuple[bytes, bool], cuts: list[int]) -> None:
    wire, close = which
    places = sorted({cut for cut in cuts if cut < len(wire)})
    pieces = [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True)]

    async def ask() -> bytes:
        server = Server(_says(*pieces, close=close))
        async with server.open() as client:
            return (await client.get(server.url, "/", max_bytes=99)).body

    assert asyncio.run(ask()) == b"a 1\n"


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/2 200\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\na 1\n", "not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\na 1\n", "two content lengths"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding"),
        (b"HTTP/1.1 200 OK\r\n folded\r\n\r\n", "header lines"),
        (CHUNKED + b"zz\r\na\r\n", "not a number"),
        (CHUNKED + b"1\r\nab\r\n0\r\n\r\n", "does not end"),
        (CHUNKED + b"1" * 400, "too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEAD_BYTES // 5), "head is over"),
    ],
)
async def test_what_is_not_clearly_framed_is_an_error(wire: bytes, said: str) -> None:
    server = Server(_says(wire))
    async with server.open() as client:
        with pytest.raises(HttpError, match=said):
            await client.get(server.url, "/", max_bytes=10_000)


async def test_an_answer_that_ends_too_soon() -> None:
    for wire in (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n", CHUNKED + b"8\r\na 1\n", b"HTTP/1"):
        server = Server(_says(wire, close=True))
        async with server.open() as client:
            with pytest.raises(HttpError, match="before the answer was whole"):
                await client.get(server.url, "/", max_bytes=999)


@pytest.mark.parametrize(
    "wire",
    [
        _sized(b"x" * 2000),
        CHUNKED + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000,
    ],
)
async def test_more_than_was_asked_for_is_not_read(wire: bytes) -> None:
    server = Server(_says(wire, close=True))
    async with server.open() as client:
        with pytest.raises(TooLarge):
            await client.get(server.url, "/", max_bytes=1000)


async def test_a_connection_that_the_server_closed_while_idle_is_replaced_unseen() -> None:
    server = Server(_says(_sized(b"a 1\n"), close=True))
    async with server.open() as client:
        for _ in range(3):
            assert (await client.get(server.url, "/", max_bytes=99)).body == b"a 1\n"
            await asyncio.sleep(0.02)
    assert server.connections == 3


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", b"x"])
async def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again(more: bytes) -> None:
    server = Server(_says(_sized(b"a 1\n") + more))
    async with server.open() as client:
        for _ in range(2):
            assert (await client.get(server.url, "/", max_bytes=99)).body == b"a 1\n"
    assert server.connections == 2


async def test_no_content_has_no_body_and_keeps_the_connection() -> None:
    server = Server(_says(b"HTTP/1.1 204 No Content\r\n\r\n"))
    async with server.open() as client:
        for _ in range(2):
            assert (await client.get(server.url, "/", max_bytes=99)).body == b""
    assert server.connections == 1


async def test_a_cancelled_request_takes_its_connection_with_it() -> None:
    async def slow_once(_: bytes, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 1:
            await asyncio.sleep(0.2)
        writer.write(_sized(b"%d" % len(server.requests)))

    server = Server(slow_once)
    async with server.open() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.get(server.url, "/", max_bytes=99)
        assert (await client.get(server.url, "/", max_bytes=99)).body == b"2"
    assert server.connections == 2


async def test_a_closed_client_and_addresses_that_are_none() -> None:
    server = Server(_says(_sized(b"")))
    async with server.open() as client:
        with pytest.raises(HttpError, match="no http or https"):
            await client.get("ftp://host", "/", max_bytes=9)
        await client.close()
        with pytest.raises(HttpError, match="closed"):
            await client.get(server.url, "/", max_bytes=9)
