"""Reading a completion stream while it passes through: tokens, usage, errors and whether it ended whole.

The bytes themselves are never changed. A chunk that can only be content is counted without decoding it.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_PENDING_BYTES = 1 << 20
"""An event longer than this is no completion chunk."""
_QUOTED = (b'"error"', b'"usage"', b'"finish_reason"')
"""JSON keys worth decoding for; inside JSON text their quotes would be escaped."""


class StreamMeter:
    """Folds the bytes of one answer, however they are split.

    ``output_tokens`` counts content chunks until a usage chunk says better. Times are the ``now_ms`` of the
    feed that brought the token.
    """

    __slots__ = (
        "_data",
        "_tail",
        "cached_tokens",
        "content_chunks",
        "done",
        "error_code",
        "failed",
        "finish_reason",
        "first_token_ms",
        "last_token_ms",
        "prompt_tokens",
        "usage_tokens",
    )

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self.content_chunks = 0
        self.usage_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.first_token_ms: int | None = None
        self.last_token_ms: int | None = None
        self.finish_reason: str | None = None
        self.failed = False
        self.error_code: int | None = None
        self.done = False

    @property
    def output_tokens(self) -> int:
        """Output tokens so far."""
        return self.content_chunks if self.usage_tokens is None else self.usage_tokens

    @property
    def whole(self) -> bool:
        """True where the answer ended as it should: an end mark came, and no error."""
        return (
            not self.failed
            and (self.done or self.finish_reason is not None)
            and self.finish_reason not in ("abort", "error")
        )

    def feed(self, data: bytes, now_ms: int) -> None:
        """Take the next bytes of an event stream."""
        data = self._tail + data if self._tail else data
        lines = data.split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            self._line(line.removesuffix(b"\r"), now_ms)
        if len(self._tail) > MAX_PENDING_BYTES:
            self.failed, self._tail = True, b""

    def close(self, now_ms: int) -> None:
        """The stream ended: take a last event whose blank line is missing."""
        if self._tail:
            tail, self._tail = self._tail, b""
            self._line(tail.removesuffix(b"\r"), now_ms)
        self._line(b"", now_ms)

    def take_body(self, body: bytes) -> None:
        """Take a whole JSON answer instead of a stream."""
        document = _decoded(body)
        if document is None or document.get("error") is not None:
            self._fail(document.get("error") if document else None)
            return
        self.done = True
        self._timings(document.get("timings"))
        self._usage(document.get("usage"))
        for choice in _choices(document):
            reason = choice.get("finish_reason")
            self.finish_reason = reason if isinstance(reason, str) else self.finish_reason

    def _line(self, line: bytes, now_ms: int) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            payload = b"\n".join(self._data)
            self._data.clear()
            self._event(payload, now_ms)

    def _event(self, payload: bytes, now_ms: int) -> None:
        if payload == b"[DONE]":
            self.done = True
        elif self.first_token_ms is not None and not _telling(payload):
            self._content(1, now_ms)
        elif (document := _decoded(payload)) is not None:
            self._chunk(document, now_ms)

    def _chunk(self, document: dict[str, Any], now_ms: int) -> None:
        if document.get("error") is not None:
            self._fail(document["error"])
            return
        self._timings(document.get("timings"))
        self._usage(document.get("usage"))
        for choice in _choices(document):
            self._content(int(_has_content(choice)), now_ms)
            reason = choice.get("finish_reason")
            self.finish_reason = reason if isinstance(reason, str) else self.finish_reason

    def _content(self, chunks: int, now_ms: int) -> None:
        if chunks:
            self.content_chunks += chunks
            self.last_token_ms = now_ms
            if self.first_token_ms is None:
                self.first_token_ms = now_ms

    def _usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.usage_tokens = _count(usage.get("completion_tokens"), self.usage_tokens)
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            details = usage.get("prompt_tokens_details")  # null even on a cache hit in some vLLM versions
            if isinstance(details, dict):
                self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)

    def _timings(self, timings: Any) -> None:
        """llama.cpp's own count, in its last chunk also where no usage was asked for.

        Its content chunks are fewer than its tokens: it holds back parts of a UTF-8 character.
        """
        if isinstance(timings, dict):
            self.usage_tokens = _count(timings.get("predicted_n"), self.usage_tokens)
            self.cached_tokens = _count(timings.get("cache_n"), self.cached_tokens)
            computed = _count(timings.get("prompt_n"), None)
            if computed is not None and self.cached_tokens is not None:
                self.prompt_tokens = computed + self.cached_tokens

    def _fail(self, error: Any) -> None:
        self.failed = True
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, str) and code.isdecimal():
            code = int(code[:6])
        self.error_code = code if isinstance(code, int) and 100 <= code <= 599 else None


def _telling(payload: bytes) -> bool:
    """True where a chunk may hold more than content."""
    for key in _QUOTED:
        at = payload.find(key)
        if at >= 0 and not payload[at + len(key) : at + len(key) + 8].lstrip(b" :").startswith(b"null"):
            return True
    return b'"choices"' not in payload


def _decoded(payload: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return document if isinstance(document, dict) else None


def _choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    return [item for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []


def _has_content(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(
        delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")
    )


def _count(value: Any, unknown: int | None) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000_000
    return value if good else unknown
