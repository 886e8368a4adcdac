"""Synthetic prompt text: no real content, and exactly one token per word for the emulated engines.

Equal prefix block ids give equal text, so an engine's prefix cache sees the sharing that the workload
describes; everything else is unique to its intent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from sim.workloads.traces import BLOCK_TOKENS

# 256 short words, one for each value of a hash byte: plain ASCII, nothing that JSON has to escape.
_CONSONANTS = ("b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u", "y", "ai", "au", "ea", "ei", "eo", "ia", "io", "oa", "ou", "ui")
WORDS: tuple[str, ...] = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS)

_CACHED_BLOCKS = 8_192  # about 1.5 kB each


def _words(name: str, count: int) -> str:
    """`count` words that are a pure function of `name`: the bytes of an extendable hash pick them."""
    return " ".join(map(WORDS.__getitem__, hashlib.shake_128(name.encode()).digest(count)))


@lru_cache(maxsize=_CACHED_BLOCKS)
def block_text(block_id: int) -> str:
    """The 512 words of a prefix block: a pure function of its id."""
    return _words(f"block {block_id}", BLOCK_TOKENS)


def prompt_text(input_tokens: int, prefix_blocks: Sequence[int], unique: str) -> str:
    """A prompt of exactly `input_tokens` words.

    It starts with the text of `prefix_blocks` as far as they fit whole; the rest, the last partial block
    included, is a pure function of `unique` (the intent id). ValueError below one token.
    """
    if input_tokens < 1:
        raise ValueError(f"A prompt needs at least 1 token, not {input_tokens}.")
    parts = [block_text(block) for block in prefix_blocks[: input_tokens // BLOCK_TOKENS]]
    rest = input_tokens - len(parts) * BLOCK_TOKENS
    if rest:
        parts.append(_words(f"intent {unique}", rest))
    return " ".join(parts)
