"""A server-sent-events reader for OpenAI-style completion streams that is cheap per chunk.

SSE: https://html.spec.whatwg.org/multipage/server-sent-events.html (comments, CRLF and lone CR, fields).
Thousands of chunks a second pass here, so a content chunk is only *counted*; JSON is decoded for the chunks
up to the first content, and for those whose bytes can hold usage, an error or a finish reason.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_EVENT_BYTES = 1 << 20  # a longer event is no completion chunk; give up rather than fill the memory

_ABORTED = ("abort", "error")  # finish reasons of engines that gave up on a request
_ERROR_TEXT_CHARS = 200  # enough to name the fault; error bodies may echo what was sent


class StreamError(msgspec.Struct, frozen=True):
    """An error that arrived inside the stream: its code where it is a number, and a short message."""

    code: int | None
    message: str


class CompletionStream:
    """Folds the bytes of one response, however they are split, into what the ledger needs.

    Attributes: `tokens` counts content chunks until the usage chunk says how many tokens they were;
    `first_token_ms` / `last_token_ms` are the `now_ms` of the feeds that brought the first and the last
    content; `error` is an in-stream error; `done` is `[DONE]`; `malformed` counts undecodable chunks.
    """

    __slots__ = (
        "_data",
        "_event",
        "_tail",
        "cached_tokens",
        "content_chunks",
        "done",
        "error",
        "finish_reason",
        "first_token_ms",
        "last_token_ms",
        "malformed",
        "usage_tokens",
    )

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._event = b""
        self.content_chunks = 0
        self.usage_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.first_token_ms: float | None = None
        self.last_token_ms: float | None = None
        self.finish_reason: str | None = None
        self.error: StreamError | None = None
        self.done = False
        self.malformed = 0

    @property
    def tokens(self) -> int:
        """Output tokens: what the server's usage says, else the number of content chunks so far."""
        return self.content_chunks if self.usage_tokens is None else self.usage_tokens

    @property
    def finished(self) -> bool:
        """True where the answer is whole: `[DONE]` or a finish reason came, and neither error nor abort."""
        if self.error is not None or self.finish_reason in _ABORTED:
            return False
        return self.done or self.finish_reason is not None

    def feed(self, data: bytes, now_ms: float) -> None:
        """Take the next bytes of the body; `now_ms` is when they arrived, on any one clock."""
        if self._tail:
            data = self._tail + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # perhaps half of a CRLF: the next bytes tell
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        self._tail = lines.pop() + held
        for line in lines:
            self._line(line, now_ms)
        if len(self._tail) > MAX_EVENT_BYTES:
            self.malformed += 1
            self.error = StreamError(None, f"an event of more than {MAX_EVENT_BYTES} bytes")
            self._tail = b""

    def close(self, now_ms: float) -> None:
        """The body ended: take a last event even where its blank line is missing."""
        if self._tail:
            tail, self._tail = self._tail.removesuffix(b"\r"), b""
            self._line(tail, now_ms)
        self._line(b"", now_ms)

    def _line(self, line: bytes, now_ms: float) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line:
            if self._data:
                payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data.clear()
                self._payload(payload, now_ms)
            self._event = b""
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()
        # anything else is a comment or a field that says nothing here

    def _payload(self, payload: bytes, now_ms: float) -> None:
        if self.done or not payload:
            return
        if payload == b"[DONE]":
            self.done = True
        elif self.first_token_ms is None or self._event == b"error" or _is_telling(payload):
            self._decoded(payload, now_ms)
        else:
            self.content_chunks += 1
            self.last_token_ms = now_ms

    def _decoded(self, payload: bytes, now_ms: float) -> None:
        try:
            chunk = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            chunk = None
        if not isinstance(chunk, dict):
            self.malformed += 1
            return
        error = chunk.get("error")
        if error is None and self._event == b"error":
            error = chunk
        if error is not None:
            self.error = stream_error(error)
            return
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if _has_content(choice):
                self.content_chunks += 1
                self.last_token_ms = now_ms
                if self.first_token_ms is None:
                    self.first_token_ms = now_ms
            reason = choice.get("finish_reason")
            if isinstance(reason, str):
                self.finish_reason = reason
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage(usage)

    def _usage(self, usage: dict[str, Any]) -> None:
        self.usage_tokens = _count(usage.get("completion_tokens"), self.usage_tokens)
        details = usage.get("prompt_tokens_details")  # null even on a cache hit in some vLLM versions
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)


def stream_error(error: object) -> StreamError:
    """The OpenAI-style error object (or a bare text) as code and short message."""
    if not isinstance(error, dict):
        return StreamError(None, str(error)[:_ERROR_TEXT_CHARS])
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 3:
        code = int(code)
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    text = error.get("message") or error.get("type") or code or "no message"
    return StreamError(number, str(text)[:_ERROR_TEXT_CHARS])


def _is_telling(payload: bytes) -> bool:
    """True where the chunk may hold more than content; inside JSON texts the quotes would be escaped."""
    return (
        b'"error"' in payload
        or _is_set(payload, b'"usage"')
        or _is_set(payload, b'"finish_reason"')
        or b'"choices"' not in payload
    )


def _is_set(payload: bytes, key: bytes) -> bool:
    """True where `key` occurs with a value other than null."""
    at = payload.find(key)
    if at < 0:
        return False
    return not payload[at + len(key) : at + len(key) + 8].lstrip(b" \t:").startswith(b"null")


def _has_content(choice: dict[str, Any]) -> bool:
    """True where the choice carries generated text: chat (content, reasoning) or plain completion."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(
        delta.get("content")
        or delta.get("reasoning_content")
        or delta.get("reasoning")
        or delta.get("tool_calls")
    )


def _count(value: object, unknown: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else unknown
