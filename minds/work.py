"""One unit for the cost of a request, and how its parts are estimated before anything is known for sure.

The unit is the work token: what one decode token costs an engine at a usual batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFILL_WEIGHT = 0.16
"""Work tokens of one uncached prompt token.

From the step model ``step_ms = a + b*B + c*KV_k + d*P + e*sum(chunk_k*(ctx_k + chunk_k/2))`` (docs/design.md,
the emulated engines) at a batch of B = 64 sequences with 1,260 resident tokens each (a conversation half
way): a decode token costs ``(a + b*64 + c*80.6)/64`` = 0.262 ms with set S2 (70B on 4x H100) and 0.172 ms
with S4 (8B on one H100). A prefill token costs ``d`` plus its attention ``e*L/2`` (L in thousands, for a
prompt of L): 0.040-0.043 ms (S2) and 0.018-0.020 ms (S4) for prompts up to 4,000 tokens. The ratios are
0.15-0.16 and 0.10-0.12. The largest is taken, since prefill that is reckoned too cheap delays first tokens.
"""

INITIAL_OUTPUT_TOKENS = 256.0
INITIAL_BYTES_PER_TOKEN = 4.0


def work_tokens(uncached_prompt_tokens: float, output_tokens: float) -> float:
    """The work of a request in decode-token equivalents; negative counts read as 0."""
    return PREFILL_WEIGHT * max(0.0, uncached_prompt_tokens) + max(0.0, output_tokens)


class OutputEstimator:
    """Predicts output tokens from finished requests of the same class; never sees a true length ahead.

    An exponentially weighted mean; ``weight`` is the newest outcome's share. Bounded in classes: beyond
    ``max_classes`` names, new ones share the initial guess.
    """

    def __init__(
        self, *, initial_tokens: float = INITIAL_OUTPUT_TOKENS, weight: float = 0.02, max_classes: int = 256
    ) -> None:
        self._initial = initial_tokens
        self._weight = weight
        self._max_classes = max_classes
        self._mean: dict[str, float] = {}

    def observe(self, service_class: str, output_tokens: int) -> None:
        """Take a finished (``ok``) request's output tokens."""
        mean = self._mean.get(service_class)
        if mean is None:
            if len(self._mean) >= self._max_classes:
                return
            mean = self._initial
        self._mean[service_class] = mean + self._weight * (output_tokens - mean)

    def predict(self, service_class: str, max_tokens: int | None) -> float:
        """The expected output tokens: the class's mean, at most what the request itself allows."""
        mean = self._mean.get(service_class, self._initial)
        return mean if max_tokens is None else min(float(max_tokens), mean)


class PromptSizer:
    """Estimates a prompt's tokens from its bytes, by a ratio that is learned for each pool.

    Token ids in the request are counted exactly. Text starts at 4 bytes a token and follows the
    ``usage.prompt_tokens`` that engines report; bytes and tokens are kept as fading sums, so the ratio is
    that of recent traffic weighted by length.
    """

    FADE = 0.98
    PRIOR_TOKENS = 500.0

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def bytes_per_token(self, pool: str) -> float:
        """The ratio in use for this pool."""
        seen_bytes, seen_tokens = self._sums.get(pool, (0.0, 0.0))
        prior = self.PRIOR_TOKENS
        return (seen_bytes + prior * INITIAL_BYTES_PER_TOKEN) / (seen_tokens + prior)

    def estimate(self, pool: str, text_bytes: int, token_ids: int) -> int:
        """Prompt tokens of a request with so much text and so many token ids; at least 1."""
        return max(1, token_ids + round(text_bytes / self.bytes_per_token(pool)))

    def observe(self, pool: str, text_bytes: int, token_ids: int, prompt_tokens: int) -> None:
        """Take an engine's own count for a request; only its text teaches the ratio."""
        text_tokens = prompt_tokens - token_ids
        if text_bytes <= 0 or text_tokens <= 0:
            return
        seen_bytes, seen_tokens = self._sums.get(pool, (0.0, 0.0))
        self._sums[pool] = (self.FADE * seen_bytes + text_bytes, self.FADE * seen_tokens + text_tokens)


def prompt_size(body: Mapping[str, Any]) -> tuple[int, int]:
    """``(text bytes, token ids)`` of a chat or completion request's prompt, tools and schemas included.

    The prompt may be text, a list of texts, a list of token ids or a list of such lists; message contents
    may be text or a list of parts, of which only the text is counted.
    """
    text_bytes, token_ids = _size(body.get("prompt"))
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            content = message.get("content")
            parts = content if isinstance(content, list) else [content]
            for part in parts:
                text_bytes += _text_bytes(part.get("text") if isinstance(part, Mapping) else part)
    return text_bytes, token_ids


def max_output_tokens(body: Mapping[str, Any]) -> int | None:
    """The request's own limit on output tokens (either OpenAI name), or None."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _size(prompt: Any) -> tuple[int, int]:
    if isinstance(prompt, str):
        return _text_bytes(prompt), 0
    if not isinstance(prompt, list):
        return 0, 0
    if prompt and isinstance(prompt[0], int):
        return 0, len(prompt)
    sizes = [_size(part) for part in prompt if isinstance(part, str | list)]
    return sum(size[0] for size in sizes), sum(size[1] for size in sizes)


def _text_bytes(text: Any) -> int:
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
