"""Text for an engine without a model: tokens, block hashes, and seeded output.

A token is a word between white space: cheap, deterministic, and the same in a prompt and in an answer that
comes back as part of the next prompt. Prompts given as token ids are taken as they are. What a request
generates is drawn from a small vocabulary by a seed made of the instance's seed, the request's ``seed`` and
the prompt: the same prompt gets the same answer everywhere, as at temperature 0.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from sim.engine import FinishReason

_SYLLABLES: Final = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")


def _vocabulary(size: int) -> tuple[str, ...]:
    rng = random.Random(20260)
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3))))] = None
    return tuple(words)


VOCABULARY: Final = _vocabulary(512)
"""Lower-case ASCII words, so that they need no JSON escaping."""

# Where the request doesn't fix its length, outputs are log-normal with mean 211 tokens: the mean of a public
# trace of conversations, with a spread that is usual for them.
_OUTPUT_SIGMA: Final = 0.9
_OUTPUT_MU: Final = math.log(211) - _OUTPUT_SIGMA**2 / 2


@dataclass(frozen=True, slots=True)
class Generation:
    """All that is decided about a request before it runs.

    ``words`` are the output, one token each; ``block_hashes`` cover the full KV blocks of prompt plus output.
    """

    prompt_tokens: int
    words: Sequence[str]
    finish_reason: FinishReason
    block_hashes: Sequence[int]
    max_tokens: int


def tokens_of_text(text: str) -> list[str]:
    """Tokens of a completion prompt."""
    return text.split()


def tokens_of_chat(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Tokens of a chat of (role, content): each turn starts with a role token; the answer's turn is open."""
    tokens: list[str] = []
    for role, content in messages:
        tokens.append(f"<|{role}|>")
        tokens.extend(content.split())
    tokens.append("<|assistant|>")
    return tokens


def block_hashes(tokens: Sequence[str], block_tokens: int) -> list[int]:
    """Chained 64-bit hashes of the full blocks of ``tokens``: each stands for its block and all before it."""
    hashes: list[int] = []
    parent = b""
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        content = " ".join(tokens[start : start + block_tokens]).encode("utf-8", "surrogatepass")
        parent = blake2b(content, digest_size=8, key=parent).digest()
        hashes.append(int.from_bytes(parent, "big"))
    return hashes


def plan_generation(
    prompt: Sequence[str],
    *,
    max_tokens: int,
    ignore_eos: bool,
    block_tokens: int,
    instance_seed: int,
    request_seed: int | None,
) -> Generation:
    """Decide a request's output: ``max_tokens`` long with ``ignore_eos``, else a seeded draw up to that."""
    digest = blake2b(" ".join(prompt).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    rng = random.Random(f"{instance_seed}/{request_seed}/{digest}")
    natural_tokens = max(1, round(rng.lognormvariate(_OUTPUT_MU, _OUTPUT_SIGMA)))
    stops = not ignore_eos and natural_tokens <= max_tokens
    words = rng.choices(VOCABULARY, k=natural_tokens if stops else max_tokens)
    return Generation(
        prompt_tokens=len(prompt),
        words=words,
        finish_reason="stop" if stops else "length",
        block_hashes=block_hashes([*prompt, *words], block_tokens),
        max_tokens=max_tokens,
    )
