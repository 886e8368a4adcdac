"""PrefixKey: what a request's beginning is, without its text."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.base import Name, Record

BLOCK_TOKENS = 512
"""Tokens a block where the pool has a tokenizer configured."""


class PrefixKey(Record):
    """A chain of salted block hashes; equal chains mean equal prefixes under the same scheme and salt.

    ``scheme`` is ``tok:<tokenizer id>:<block tokens>`` where the pool has a tokenizer configured, else
    ``bytes:<block bytes>`` (canonical request bytes, then matches are estimates).
    """

    scheme: Name
    salt_id: Name
    blocks: Annotated[
        list[Annotated[str, Field(min_length=16, max_length=16, pattern=r"^[0-9a-f]+$")]],
        Field(max_length=4096, description="Chained 64-bit hashes, hex; block i covers blocks 0..i."),
    ]
