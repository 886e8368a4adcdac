"""The hash chain: cut as one likes, salted, and apart where content is."""

from __future__ import annotations

import hashlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.prefix_keys import MAX_BLOCKS, BadSalt, BlockHasher, Salt

SALT = Salt("s1", bytes(range(32)))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=150)


def small(salt: Salt = SALT, tokenizer: str = "tiny") -> BlockHasher:
    return BlockHasher(tokenizer, salt, block_tokens=32)


def test_the_chain_is_what_its_description_says() -> None:
    """Written out once more from the documentation, so that another implementation can be checked too."""
    tokens = list(range(1000, 1000 + 1300))

    def blake(data: bytes, person: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16, key=SALT.secret, person=person).digest()

    digest, expected = blake(b"tok:tiny:512\0", b"tokenfleet-root"), []
    for at in range(0, 1024, 16):
        digest = blake(digest + struct.pack("<16I", *tokens[at : at + 16]), b"tokenfleet-step")
        if (at + 16) % 512 == 0:
            expected.append(digest[:8].hex())
    key = BlockHasher("tiny", SALT).key_of(tokens)
    assert (key.scheme, key.salt_id, key.blocks) == ("tok:tiny:512", "s1", expected)


@given(TOKENS, st.lists(st.integers(0, 150), max_size=6))
def test_how_an_engine_cuts_its_blocks_does_not_matter(tokens: list[int], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    chain, blocks = small().start(), []
    for begin, end in pairwise(bounds):
        done, chain = chain.extend(tokens[begin:end])
        blocks += done
    assert blocks == small().key_of(tokens).blocks
    assert chain.rest_tokens == len(tokens) % 32


@given(TOKENS, TOKENS)
def test_equal_blocks_mean_equal_prefixes(one: list[int], other: list[int]) -> None:
    left, right = small().key_of(one).blocks, small().key_of(other).blocks
    for number, (a, b) in enumerate(zip(left, right, strict=False), start=1):
        assert (a == b) == (one[: 32 * number] == other[: 32 * number])


@given(st.lists(st.integers(0, 9), min_size=32, max_size=80), TOKENS, TOKENS)
def test_branches_leave_their_stem_as_it_was(stem: list[int], one: list[int], other: list[int]) -> None:
    blocks, chain = small().start().extend(stem)
    left, right = chain.extend(one)[0], chain.extend(other)[0]
    assert blocks + left == small().key_of(stem + one).blocks
    assert blocks + right == small().key_of(stem + other).blocks


def test_salt_tokenizer_adapter_and_extra_content_keep_chains_apart() -> None:
    tokens = list(range(96))
    plain = small().key_of(tokens).blocks
    others = [
        small(Salt("s2", bytes(32))).key_of(tokens).blocks,
        small(tokenizer="other").key_of(tokens).blocks,
        small().key_of(tokens, adapter="sql").blocks,
        small().start().extend(tokens, extra=b"image 1")[0],
        small().start().extend(tokens, extra=b"image 2")[0],
    ]
    assert len({plain[0], *(blocks[0] for blocks in others)}) == 6
    first, chain = small().start().extend(tokens[:32])
    later, _ = chain.extend(tokens[32:64], extra=b"image 1")
    assert first == plain[:1]
    assert later != plain[1:2]
    _, marked = chain.extend([], extra=b"image 1")
    assert marked.extend(tokens[32:64])[0] != plain[1:2], "an extra without tokens is kept"
    _, part = chain.extend(tokens[32:39])
    assert part.extend(tokens[39:64])[0] == plain[1:2]
    assert part.extend(tokens[39:64], extra=b"image 1")[0] != plain[1:2], "also in the middle of a step"


def test_blocks_are_whole_steps() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        BlockHasher("tiny", SALT, block_tokens=40)


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "7", None])
def test_what_is_no_token_id_is_refused_without_repeating_it(bad: object) -> None:
    with pytest.raises(ValueError, match="token id") as refused:
        small().start().extend([1, bad, 3])  # type: ignore[list-item]
    assert refused.value.__suppress_context__


def test_a_prompt_longer_than_any_key_is_cut() -> None:
    assert len(small().key_of([5] * (MAX_BLOCKS * 32 + 80)).blocks) == MAX_BLOCKS


def test_a_salt_keeps_its_secret() -> None:
    salt = Salt.parse("2026-a:" + "ab" * 32 + "\n")
    assert (salt.id, salt.secret) == ("2026-a", b"\xab" * 32)
    assert "ab" * 4 not in repr(salt)
    assert "171" not in repr(salt)


@pytest.mark.parametrize(
    "text", ["", "x", "id:", "id:zz" * 20, "id:" + "ab" * 15, "id:" + "ab" * 65, "a b:" + "ab" * 32]
)
def test_what_is_no_salt_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(BadSalt, match="hex digits") as refused:
        Salt.parse(text)
    assert "abab" not in str(refused.value)
