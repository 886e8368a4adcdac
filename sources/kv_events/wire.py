"""The wire of KV events (vLLM 0.32.0 observed; SGLang uses the same family): frames to typed batches.

A message is ``[topic, sequence number as 8 bytes big-endian, msgpack]`` and its payload
``[time, [events], rank]``. Events are maps tagged ``type`` (vLLM since 0.11) or arrays that begin with the
tag (before, and SGLang). Token ids are private: no message of an error here repeats any part of a payload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

BlockHash = int | bytes
"""An engine's own name of a block: a number of 64 bits (signed or not), or the bytes of a digest."""

DEVICE = "device"
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
MAX_SEQ = 2**53
_MEDIA = {None: DEVICE, "GPU": DEVICE, "CPU": "host"}
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx", "remaining_copy_counts")


class Malformed(ValueError):  # noqa: N818 - reads as what happened
    """A message that is no batch of KV events; the sentence holds nothing of its content."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that follow one another, the first one after ``parent``.

    ``tokens`` is empty where the engine only moved known blocks (to host memory, say). ``extras`` has an
    entry a block: what its content depends on besides tokens and adapter, b"" for nothing.
    """

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    tokens: Sequence[int] = field(repr=False)
    block_tokens: int
    medium: str = DEVICE
    adapter: str | None = None
    extras: tuple[bytes, ...] = field(default=(), repr=False)
    group: int = 0
    full_attention: bool = True


@dataclass(frozen=True, slots=True)
class Removed:
    """A copy of each of these blocks is gone; ``remaining`` tells the copies left, where the engine does."""

    hashes: tuple[BlockHash, ...]
    medium: str = DEVICE
    group: int = 0
    remaining: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is cached any more."""


KvChange = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """One message. ``ts_s`` is the engine's clock in seconds since 1970; with ``seq`` it names the batch.

    ``unread`` counts events of kinds that nobody here knows: what is cached is no longer sure after them.
    """

    seq: int
    ts_s: float
    rank: int | None
    events: tuple[KvChange, ...]
    unread: int = 0


def decode(frames: Sequence[bytes]) -> Batch:
    """The batch in a message's last two frames (a topic, or a replay's empty frame, may go before)."""
    if len(frames) < 2:
        raise Malformed(
            f"A message of {len(frames)} frames; topic, sequence number and payload were expected."
        )
    seq = _seq(frames[-2])
    try:
        payload = msgspec.msgpack.decode(frames[-1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Malformed(f"Batch {seq}: the payload is not msgpack.") from None
    if not isinstance(payload, list) or len(payload) < 2 or not isinstance(payload[1], list):
        raise Malformed(f"Batch {seq}: the payload is not [time, events, rank].")
    ts_s, rank = payload[0], payload[2] if len(payload) > 2 else None
    if isinstance(ts_s, bool) or not isinstance(ts_s, float | int) or not math.isfinite(ts_s):
        raise Malformed(f"Batch {seq}: its time is no number.")
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= 4096):
        raise Malformed(f"Batch {seq}: its rank is no number from 0 to 4096.")
    try:
        events = [_event(raw) for raw in payload[1]]
    except Malformed as error:
        raise Malformed(f"Batch {seq}: {error}") from None
    known = tuple(event for event in events if event is not None)
    return Batch(seq, float(ts_s), rank, known, len(events) - len(known))


def is_end_of_replay(frames: Sequence[bytes]) -> bool:
    """True for the message that ends a replay: sequence number -1."""
    return len(frames) >= 2 and frames[-2] == END_OF_REPLAY


def replay_request(start_seq: int) -> list[bytes]:
    """The frames that ask a replay socket for all batches from this number on."""
    return [b"", start_seq.to_bytes(8, "big")]


def _seq(frame: bytes) -> int:
    if len(frame) != 8:
        raise Malformed(f"A sequence number of {len(frame)} bytes; 8 were expected.")
    seq = int.from_bytes(frame, "big")
    if seq > MAX_SEQ:
        raise Malformed("A sequence number that no engine can have reached.")
    return seq


def _event(raw: object) -> KvChange | None:
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        names = _STORED_FIELDS if tag == "BlockStored" else _REMOVED_FIELDS
        fields = dict(zip(names, raw[1:], strict=False))
    else:
        raise Malformed("an event is neither a map nor an array.")
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        hashes = _hashes(fields.get("block_hashes"))
        remaining = fields.get("remaining_copy_counts")
        if remaining is not None and (not _counts(remaining) or len(remaining) != len(hashes)):
            raise Malformed("the remaining copies of removed blocks are not a count each.")
        left = None if remaining is None else tuple(remaining)
        return Removed(hashes, _medium(fields.get("medium")), _group(fields.get("group_idx")), left)
    if tag == "AllBlocksCleared":
        return Cleared()
    if isinstance(tag, str):
        return None
    raise Malformed("an event has no tag.")


def _stored(fields: Mapping[Any, Any]) -> Stored:
    hashes = _hashes(fields.get("block_hashes"))
    parent, tokens = fields.get("parent_block_hash"), fields.get("token_ids")
    size, adapter = fields.get("block_size"), fields.get("lora_name")
    kind = fields.get("kv_cache_spec_kind")
    if parent is not None:
        (parent,) = _hashes([parent])
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1_048_576:
        raise Malformed("a stored block has no usable size.")
    if tokens is None:
        tokens = []
    if not isinstance(tokens, list) or (tokens and len(tokens) != size * len(hashes)):
        raise Malformed("the tokens of stored blocks are not as many as the blocks hold.")
    if not all(type(token) is int and 0 <= token < 2**32 for token in tokens):
        raise Malformed("a token id is no number from 0 to 2^32 - 1.")
    if adapter is None and fields.get("lora_id") is not None:
        adapter = f"lora-id:{fields['lora_id']}"  # older engines: a number that only this engine knows
    if adapter is not None and not isinstance(adapter, str):
        raise Malformed("the adapter's name is no text.")
    extras = _extras(fields.get("extra_keys"), len(hashes), adapter)
    full = kind is None or (isinstance(kind, str) and ("full_attention" in kind or kind.startswith("mla")))
    return Stored(
        hashes,
        parent,
        tokens,
        size,
        _medium(fields.get("medium")),
        adapter,
        extras,
        _group(fields.get("group_idx")),
        full,
    )


def _extras(raw: object, blocks: int, adapter: str | None) -> tuple[bytes, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) != blocks:
        raise Malformed("the extra keys of stored blocks are not one entry a block.")
    found = []
    for entry in raw:
        keys = entry if isinstance(entry, list) else [] if entry is None else [entry]
        # vLLM names the adapter here once more; the chain has it already.
        keys = [key for key in keys if key != adapter]
        found.append(msgspec.msgpack.encode(keys) if keys else b"")
    return tuple(found) if any(found) else ()


def _hashes(raw: object) -> tuple[BlockHash, ...]:
    if not isinstance(raw, list):
        raise Malformed("the block hashes are no list.")
    for one in raw:
        number = type(one) is int and -(2**63) <= one < 2**64
        if not number and not (isinstance(one, bytes) and len(one) <= 64):
            raise Malformed("a block hash is neither a 64-bit number nor up to 64 bytes.")
    return tuple(raw)


def _counts(raw: object) -> bool:
    return isinstance(raw, list) and all(type(one) is int and one >= 0 for one in raw)


def _group(raw: object) -> int:
    if raw is None:
        return 0
    if type(raw) is not int or not 0 <= raw <= 1024:
        raise Malformed("a cache group is no number from 0 to 1024.")
    return raw


def _medium(raw: object) -> str:
    if raw is not None and not isinstance(raw, str):
        raise Malformed("a medium is no text.")
    if (known := _MEDIA.get(raw)) is not None:
        return known
    return re.sub(r"[^a-z0-9._-]+", "-", str(raw).lower())[:40] or "unnamed"
