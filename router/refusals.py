"""Refusals as HTTP: a status, a rule that programs can read, and a sentence for people."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class Refusal(Exception):  # noqa: N818 - reads as what happened
    """A request that is not served. ``retry_after_s`` where it is worth another try."""

    def __init__(self, status: int, rule: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.rule = rule
        self.message = message
        self.retry_after_s = retry_after_s
        self.decision_id = ""
        """The logged decision that refused it, where there is one."""

    def response(self, headers: Mapping[str, str] | None = None) -> web.Response:
        """The OpenAI-style answer."""
        sent = dict(headers or {})
        if self.retry_after_s is not None:
            sent["Retry-After"] = str(self.retry_after_s)
        return web.Response(
            status=self.status,
            body=json.dumps(error_body(self.status, self.rule, self.message)).encode(),
            content_type="application/json",
            headers=sent,
        )


def malformed(message: str) -> Refusal:
    """400: the request can't be understood."""
    return Refusal(400, "malformed_request", message)


def error_body(status: int, rule: str, message: str) -> dict[str, object]:
    """The error object that OpenAI's clients understand, with our ``rule``."""
    kind = _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": rule, "rule": rule}}


def error_event(status: int, rule: str, message: str) -> bytes:
    """The same in a stream that has begun: an SSE error event (code a number, as vLLM's), then the end."""
    kind = _TYPES.get(status, "server_error")
    error = {"error": {"message": message, "type": kind, "param": None, "code": status, "rule": rule}}
    return b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n"
