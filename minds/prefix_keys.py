"""The hash chain behind PrefixKey: salted 64-bit hashes of 512-token blocks, each covering all before it.

Sources make it of what engines say they cache, routers of the prompts that they tokenize; both get the same
hashes for the same tokens under the same tokenizer, adapter and salt, whatever the engine's own block size.
Token ids go in and only hashes come out. All hashing is BLAKE2b (RFC 7693) keyed with the fleet's secret, so
who lacks the secret can't test guesses of a prompt against what is on the topics. A running digest of 16
bytes takes up 16 tokens a step; a block's hash is the first 8 bytes of the digest at its end. So the end of
any engine block of 16, 32, ... tokens is a digest to go on from, whichever way prompts branch there.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.prefixes import BLOCK_TOKENS, PrefixKey

SALT_VARIABLE = "TOKENFLEET_PREFIX_SALT"
"""The environment variable that holds the salt as text, where no file does."""
MAX_BLOCKS = 4096
"""Blocks that one PrefixKey can hold; what lies beyond earns nothing any more."""
STEP_TOKENS = 16
_HASH_BYTES = 8
_DIGEST_BYTES = 16
_SALT = re.compile(r"(?P<id>[A-Za-z0-9._@/+\-]{1,64}):(?P<secret>(?:[0-9a-fA-F]{2}){16,64})")


class BadSalt(ValueError):  # noqa: N818 - reads as what happened
    """A text that is no salt; the message does not repeat it."""


@dataclass(frozen=True, slots=True)
class Salt:
    """The fleet's salt: ``id`` is public and goes with each key; ``secret`` (16 to 64 bytes) never does."""

    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Salt:
        """The salt in ``<id>:<secret in hex>``, as files and the environment hold it; raises BadSalt."""
        match = _SALT.fullmatch(text.strip())
        if match is None:
            raise BadSalt(
                "The prefix salt must read <id>:<secret>, the id of letters, digits and ._@/+- "
                "and the secret of 32 to 128 hex digits (`openssl rand -hex 32` makes one)."
            )
        return cls(match["id"], bytes.fromhex(match["secret"]))


class BlockHasher:
    """Makes chains under one tokenizer and salt. ``scheme`` and ``salt_id`` name what is comparable."""

    def __init__(self, tokenizer: str, salt: Salt, *, block_tokens: int = BLOCK_TOKENS) -> None:
        if block_tokens < STEP_TOKENS or block_tokens % STEP_TOKENS:
            raise ValueError(f"A block of {block_tokens} tokens is no multiple of {STEP_TOKENS}.")
        self.scheme = f"tok:{tokenizer}:{block_tokens}"
        self.salt_id = salt.id
        self.block_tokens = block_tokens
        self._secret = salt.secret

    def start(self, adapter: str | None = None) -> Chain:
        """The empty chain of a model's base weights, or of a LoRA adapter of this name."""
        root = self.hash(b"tokenfleet-root", f"{self.scheme}\0{adapter or ''}".encode())
        return Chain(self, root.digest())

    def key_of(self, tokens: Sequence[int], *, adapter: str | None = None) -> PrefixKey:
        """The key of a prompt: its whole blocks; raises ValueError on a number that is no token id."""
        blocks, _ = self.start(adapter).extend(tokens[: MAX_BLOCKS * self.block_tokens])
        return self.key(blocks)

    def key(self, blocks: Sequence[str]) -> PrefixKey:
        """These blocks with the names of this scheme and salt."""
        return PrefixKey(scheme=self.scheme, salt_id=self.salt_id, blocks=list(blocks))

    def hash(self, person: bytes, data: bytes) -> hashlib.blake2b:
        """A keyed hash that has taken up ``data``; ``person`` keeps its uses apart."""
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=self._secret, person=person)


class Chain:
    """A prefix of any length: the digest at its last whole step, and the hash of what follows. Immutable.

    Extending leaves the original as it was, so that branches share it. ``rest_tokens`` is how many tokens it
    has beyond its last whole block.
    """

    __slots__ = ("_digest", "_hasher", "_partial", "rest_tokens")

    def __init__(
        self, hasher: BlockHasher, digest: bytes, partial: hashlib.blake2b | None = None, rest_tokens: int = 0
    ) -> None:
        self._hasher = hasher
        self._digest = digest
        self._partial = partial
        self.rest_tokens = rest_tokens

    def extend(self, tokens: Sequence[int], *, extra: bytes = b"") -> tuple[list[str], Chain]:
        """The blocks (16 hex digits each) that these tokens complete, and the chain with the tokens.

        ``extra`` is what else the content of these tokens depends on, such as the hash of an image; with it
        the chain differs from a plain one from here on. Raises ValueError on a number that is no token id.
        """
        try:
            data = struct.pack(f"<{len(tokens)}I", *tokens)
        except struct.error:
            raise ValueError("A token id is not a whole number from 0 to 2^32 - 1.") from None
        hash_of, size = self._hasher.hash, self._hasher.block_tokens
        digest = self._digest
        partial = None if self._partial is None else self._partial.copy()
        if extra and partial is None:
            digest = hash_of(b"tokenfleet-extra", digest + extra).digest()
        elif extra and partial is not None:
            partial = hash_of(b"tokenfleet-mixed", partial.digest() + extra)
        blocks: list[str] = []
        at, end, filled = 0, len(tokens), self.rest_tokens
        while at < end:
            took = min(STEP_TOKENS - filled % STEP_TOKENS, end - at)
            piece = data[4 * at : 4 * (at + took)]
            if partial is None:
                partial = hash_of(b"tokenfleet-step", digest + piece)
            else:
                partial.update(piece)
            at, filled = at + took, filled + took
            if filled % STEP_TOKENS == 0:
                digest, partial = partial.digest(), None
            if filled == size:
                blocks.append(digest[:_HASH_BYTES].hex())
                filled = 0
        return blocks, Chain(self._hasher, digest, partial, filled)
