"""Errors of the emulated engines: those for the operator, and those that an API client gets to see."""

import json
from typing import Any


class EmulatorError(Exception):
    """The emulator can't do what it was asked for; the message is a sentence for the operator."""


class ApiError(Exception):
    """An answer in OpenAI's error format, as vLLM sends it."""

    def __init__(self, status: int, message: str, error_type: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return {
            "error": {
                "message": self.message,
                "type": self.error_type,
                "param": self.param,
                "code": self.status,
            }
        }

    def sse(self) -> bytes:
        """The error as an event of a stream whose status line, 200, is already out."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400: the client has to change its request."""
    return ApiError(400, message, "BadRequestError", param)


def model_not_found(model: str) -> ApiError:
    """404 for a model that this instance doesn't serve."""
    return ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def queue_full(limit: int) -> ApiError:
    """503 of the admission limit."""
    return ApiError(
        503,
        f"The engine's queue is full ({limit} requests are waiting). Try again later.",
        "ServiceUnavailableError",
    )


def engine_died() -> ApiError:
    """500 for what was in flight when the engine restarted."""
    return ApiError(
        500, "EngineCore encountered an issue: the emulated engine restarted.", "InternalServerError"
    )
