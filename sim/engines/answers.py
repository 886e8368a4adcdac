"""The bytes of answers: SSE chunks as vLLM 0.32 writes them, and whole JSON answers.

A stream has hundreds of chunks that differ in one word, so a chunk is assembled from parts that are prepared
once a request; nothing is dumped to JSON per token. Words of the vocabulary need no escaping.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from sim.engine import FinishReason
from sim.engines.requests import ParsedRequest

SYSTEM_FINGERPRINT: Final = "vllm-0.32.0-emulated"
DONE: Final = b"data: [DONE]\n\n"


class SseWriter:
    """Chunks of one streamed answer, of a chat or of a completion.

    The first token of a chat comes with a chunk before it that carries the role; the chunk of the last token
    carries ``finish_reason``; then comes the usage, where asked for, and ``[DONE]``.
    """

    def __init__(self, parsed: ParsedRequest, request_id: str, model: str, created_s: int) -> None:
        chat = parsed.kind == "chat"
        self._chat = chat
        self._words: Sequence[str] = parsed.generation.words
        self._reason: FinishReason = parsed.generation.finish_reason
        self._prompt_tokens = parsed.generation.prompt_tokens
        self._include_usage = parsed.include_usage
        self._continuous_usage = parsed.continuous_usage
        object_name = "chat.completion.chunk" if chat else "text_completion"
        self._head = (
            f'data: {{"id":{json.dumps(request_id)},"object":"{object_name}","created":{created_s},'
            f'"model":{json.dumps(model)},"choices":['
        )
        self._before_word = self._head + (
            '{"index":0,"delta":{"content":" ' if chat else '{"index":0,"text":" '
        )
        if chat:
            self._after_word = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            self._after_last = (
                f'"}},"logprobs":null,"finish_reason":"{self._reason}","stop_reason":null,"token_ids":null}}]'
            )
        else:
            tail = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            self._after_word = f'","logprobs":null,"finish_reason":null,{tail}'
            self._after_last = f'","logprobs":null,"finish_reason":"{self._reason}",{tail}'

    def chunks(self, start: int, stop: int) -> bytes:
        """The chunks of tokens ``start`` to ``stop`` (exclusive), one chunk each."""
        parts: list[str] = []
        if start == 0 and self._chat:
            parts.append(
                self._head
                + '{"index":0,"delta":{"role":"assistant","content":""},'
                + '"logprobs":null,"finish_reason":null}]'
                + self._running_usage(0)
                + ',"prompt_token_ids":null,"prompt_text":null}\n\n'
            )
        last = len(self._words) - 1
        for index in range(start, stop):
            after = self._after_last if index == last else self._after_word
            usage = self._running_usage(index + 1)
            parts.append(f"{self._before_word}{self._words[index]}{after}{usage}}}\n\n")
        return "".join(parts).encode()

    def closing(self) -> bytes:
        """What follows the last token: the usage chunk, where asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        usage = _usage_json(self._prompt_tokens, len(self._words))
        fingerprint = f',"system_fingerprint":"{SYSTEM_FINGERPRINT}"' if self._chat else ""
        return f'{self._head}],"usage":{usage}{fingerprint}}}\n\n'.encode() + DONE

    def _running_usage(self, completion_tokens: int) -> str:
        if self._continuous_usage:
            return f',"usage":{_usage_json(self._prompt_tokens, completion_tokens)}'
        return "" if self._chat else ',"usage":null'


def whole_answer(parsed: ParsedRequest, request_id: str, model: str, created_s: int) -> dict[str, Any]:
    """The JSON answer of a request that isn't streamed."""
    generation = parsed.generation
    text = "".join(f" {word}" for word in generation.words)
    chat = parsed.kind == "chat"
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    else:
        choice["text"] = text
    choice |= {
        "logprobs": None,
        "finish_reason": generation.finish_reason,
        "stop_reason": None,
        "token_ids": None,
    }
    return {
        "id": request_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": created_s,
        "model": model,
        "choices": [choice],
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "usage": {
            "prompt_tokens": generation.prompt_tokens,
            "total_tokens": generation.prompt_tokens + len(generation.words),
            "completion_tokens": len(generation.words),
            "prompt_tokens_details": None,
        },
    }


def _usage_json(prompt_tokens: int, completion_tokens: int) -> str:
    return (
        f'{{"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens + completion_tokens},'
        f'"completion_tokens":{completion_tokens}}}'
    )
