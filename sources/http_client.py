"""A lean HTTP/1.1 client for scraping: keep-alive GETs, answers bounded in size, a third of aiohttp's CPU.

An agent asks each engine for one page several times a second, so the client is most of its work. This one
knows what a scrape needs and no more: no redirects, cookies, proxies, compression or pipelining. Times are
bounded by the caller (``asyncio.timeout``): a request that is cancelled closes its connection.
Framing follows RFC 9112; whatever is not clearly framed is an error, never a guess.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 64 * 1024
MAX_CHUNK_LINE_BYTES = 256
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [^\r\n]*)?")
_NO_BODY = frozenset({204, 304})


class HttpError(OSError):
    """No answer, or one that is no HTTP; the message says what was wrong with it."""


class TooLarge(HttpError):  # noqa: N818 - reads as what happened
    """The answer is longer than was asked for; it was not read to its end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Header names are in lower case; of a repeated one the last counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int
    tls: bool
    authority: str
    path: str


@lru_cache(maxsize=4096)
def _address(base_url: str) -> _Address:
    parts = urlsplit(base_url)
    tls = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HttpError(f"{base_url} is no http or https address")
    return _Address(parts.hostname, parts.port or (443 if tls else 80), tls, parts.netloc, parts.path)


class HttpClient:
    """GETs over kept connections, a few a host. Close it once; requests then in flight fail."""

    def __init__(self, *, kept_per_host: int = 2, tls: ssl.SSLContext | None = None) -> None:
        self._kept_per_host = kept_per_host
        self._tls = tls
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = {}
        self._closed = False

    async def get(
        self, base_url: str, path: str = "", *, headers: Mapping[str, str] | None = None, max_bytes: int
    ) -> Answer:
        """The answer to ``GET base_url + path``; raises HttpError, TooLarge or OSError."""
        address = _address(base_url)
        where = (address.host, address.port, address.tls)
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        target = (address.path + path) or "/"
        request = f"GET {target} HTTP/1.1\r\nHost: {address.authority}\r\n{lines}\r\n".encode("ascii")
        while True:
            kept = self._idle.get(where)
            reused = bool(kept)
            connection = kept.pop() if kept else await self._connect(address)
            try:
                answer = await connection.ask(request, max_bytes)
            except BaseException as error:
                connection.close()
                if reused and isinstance(error, HttpError) and connection.silent:
                    continue  # the server had closed it while it was idle; nothing was lost
                raise
            if connection.reusable and not self._closed:
                kept = self._idle.setdefault(where, [])
                if len(kept) < self._kept_per_host:
                    kept.append(connection)
                    return answer
            connection.close()
            return answer

    async def _connect(self, address: _Address) -> _Connection:
        if self._closed:
            raise HttpError("the client is closed")
        context = (self._tls or _default_tls()) if address.tls else None
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, address.host, address.port, ssl=context, happy_eyeballs_delay=0.25
        )
        return connection

    async def close(self) -> None:
        """Close the idle connections; those in use close with their request."""
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@lru_cache(maxsize=1)
def _default_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@dataclass(slots=True)
class _Reading:
    """One answer as it comes in."""

    done: asyncio.Future[Answer]
    max_bytes: int
    head: bytearray = field(default_factory=bytearray)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    left: int | None = None
    """Bytes of the body (or of this chunk) still to come; None: until the connection closes."""
    chunked: bool = False
    chunk_line: bytearray = field(default_factory=bytearray)
    in_trailer: bool = False
    after_chunk: bool = False


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reading: _Reading | None = None
        self.reusable = False
        self.silent = True
        """True until the first byte of an answer to the current request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, request: bytes, max_bytes: int) -> Answer:
        """Send a request and read its answer."""
        self.silent, self.reusable = True, False
        if self._transport is None or self._transport.is_closing():
            raise HttpError("the connection is closed")
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._reading = _Reading(done, max_bytes)
        self._transport.write(request)
        return await done

    def close(self) -> None:
        """Drop the connection at once; what is still unread is not waited for."""
        self.reusable, self._reading = False, None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.silent = False
        reading = self._reading
        if reading is None:  # bytes that nobody asked for
            self.close()
            return
        try:
            rest = data if reading.status else self._take_head(reading, data)
            if not rest:
                return
            if self._reading is None:  # more than the answer that has no body
                self.close()
            else:
                self._take_body(reading, rest)
        except HttpError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        reading, self.reusable = self._reading, False
        if reading is None or reading.done.done():
            return
        if reading.status and reading.left is None and not reading.chunked and error is None:
            self._finish(reading)
        else:
            self._fail(HttpError("the connection was closed before the answer was whole"))

    def _fail(self, error: HttpError) -> None:
        reading = self._reading
        self.close()
        if reading is not None and not reading.done.done():
            reading.done.set_exception(error)

    def _finish(self, reading: _Reading, *, more: bool = False) -> None:
        self._reading = None
        self.reusable = self.reusable and not more
        if not reading.done.done():
            reading.done.set_result(Answer(reading.status, reading.headers, b"".join(reading.parts)))

    def _take_head(self, reading: _Reading, data: bytes) -> bytes:
        """Read up to the end of the head; returns what follows it (of the body)."""
        reading.head += data
        while True:
            end = reading.head.find(b"\r\n\r\n")
            if end < 0:
                if len(reading.head) > MAX_HEAD_BYTES:
                    raise HttpError(f"its head is over {MAX_HEAD_BYTES // 1024} kB")
                return b""
            head, rest = bytes(reading.head[:end]), bytes(reading.head[end + 4 :])
            status, minor, headers = _parse_head(head)
            if 100 <= status < 200:  # an interim answer; the real one follows
                reading.head = bytearray(rest)
                continue
            break
        reading.status, reading.headers = status, headers
        self._frame(reading, minor)
        return rest

    def _frame(self, reading: _Reading, minor: int) -> None:
        """Decide how long the body is (RFC 9112, section 6.3)."""
        headers = reading.headers
        hold = headers.get("connection", "").lower()
        self.reusable = "close" not in hold and (minor == 1 or "keep-alive" in hold)
        coding = headers.get("transfer-encoding", "").lower()
        if reading.status in _NO_BODY:
            self._finish(reading)
        elif coding:
            if coding != "chunked":
                raise HttpError(f"its transfer coding is {coding[:40]!r}, not chunked")
            reading.chunked, reading.left = True, 0
        elif (length := headers.get("content-length")) is not None:
            if not re.fullmatch(r"[0-9]{1,15}", length):
                raise HttpError("its content length is not a number")
            reading.left = int(length)
            if reading.left > reading.max_bytes:
                raise TooLarge(f"it has {reading.left} bytes")
            if reading.left == 0:
                self._finish(reading)
        else:
            self.reusable = False

    def _take_body(self, reading: _Reading, data: bytes) -> None:
        if reading.chunked:
            self._take_chunks(reading, data)
            return
        size = len(data)
        if reading.left is not None:
            if size < reading.left:
                reading.left -= size
            else:
                reading.parts.append(data if size == reading.left else data[: reading.left])
                self._finish(reading, more=size > reading.left)
                return
        self._keep(reading, data)

    def _keep(self, reading: _Reading, data: bytes) -> None:
        reading.size += len(data)
        if reading.size > reading.max_bytes:
            raise TooLarge(f"it has more than {reading.max_bytes} bytes")
        reading.parts.append(data)

    def _take_chunks(self, reading: _Reading, data: bytes) -> None:
        position = 0
        while position < len(data):
            if reading.left:
                part = data[position : position + reading.left]
                self._keep(reading, part)
                reading.left -= len(part)
                position += len(part)
                reading.after_chunk = reading.left == 0
                continue
            end = data.find(b"\n", position)
            reading.chunk_line += data[position : end + 1 if end >= 0 else len(data)]
            if len(reading.chunk_line) > MAX_CHUNK_LINE_BYTES:
                raise HttpError("a chunk's size line is too long")
            if end < 0:
                return
            position = end + 1
            line, reading.chunk_line = bytes(reading.chunk_line).strip(b"\r\n"), bytearray()
            if self._take_chunk_line(reading, line):
                self._finish(reading, more=position < len(data))
                return

    def _take_chunk_line(self, reading: _Reading, line: bytes) -> bool:
        """A line between chunks; True where it ends the body."""
        if reading.in_trailer:
            return not line
        if reading.after_chunk:
            if line:
                raise HttpError("a chunk does not end where it should")
            reading.after_chunk = False
            return False
        size = line.partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            raise HttpError("a chunk's size is not a number")
        reading.left = int(size, 16)
        reading.in_trailer = reading.left == 0
        return False


def _parse_head(head: bytes) -> tuple[int, int, dict[str, str]]:
    first, _, rest = head.partition(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise HttpError("it does not speak HTTP/1.1")
    headers: dict[str, str] = {}
    for line in rest.decode("latin-1").split("\r\n") if rest else ():
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip():
            raise HttpError("one of its header lines is none")
        if key == "content-length" and headers.get(key, value.strip()) != value.strip():
            raise HttpError("it has two content lengths")
        headers[key] = value.strip()
    if "transfer-encoding" in headers:
        headers.pop("content-length", None)
    return int(match[2]), int(match[1]), headers
