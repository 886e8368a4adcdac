"""Frames of vLLM (maps), older vLLM and SGLang (arrays), and what is neither."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from sources.kv_events.wire import (
    END_OF_REPLAY,
    Cleared,
    Malformed,
    Removed,
    Stored,
    decode,
    is_end_of_replay,
    replay_request,
)


def frames(payload: object, seq: int = 7) -> list[bytes]:
    return [b"kv-events", seq.to_bytes(8, "big"), msgspec.msgpack.encode(payload)]


def stored(**fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [18217696156075870165, 5],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | fields


def one(event: object) -> Any:
    (read,) = decode(frames([1.5, [event], 0])).events
    return read


def test_a_batch_of_vllm() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU", "group_idx": 1}
    batch = decode(frames([1795981800.9, [stored(), removed, {"type": "AllBlocksCleared"}], 3], seq=135))
    assert (batch.seq, batch.ts_s, batch.rank, batch.unread) == (135, 1795981800.9, 3, 0)
    assert batch.events == (
        Stored((18217696156075870165, 5), None, [1, 2, 3, 4], 2),
        Removed((5,), "host", 1),
        Cleared(),
    )


def test_arrays_of_older_engines() -> None:
    batch = decode(
        frames(
            [1.0, [["BlockStored", [-5], 9, [1, 2], 2, None], ["BlockRemoved", [-5]], ["AllBlocksCleared"]]]
        )
    )
    assert batch.rank is None
    assert batch.events == (Stored((-5,), 9, [1, 2], 2), Removed((-5,)), Cleared())


def test_adapters_extras_groups_and_media() -> None:
    event = one(stored(lora_name="sql", lora_id=4, extra_keys=[["sql"], ["sql", "image"]]))
    assert event.adapter == "sql"
    assert event.extras == (b"", msgspec.msgpack.encode(["image"]))
    assert one(stored(lora_name="sql", extra_keys=[["sql"], ["sql"]])).extras == ()
    assert one(stored(lora_id=4)).adapter == "lora-id:4"
    assert one(stored(medium=None)).medium == "device"
    assert one(stored(medium="Some Disk!")).medium == "some-disk-"
    assert not one(stored(kv_cache_spec_kind="sliding_window")).full_attention
    assert one(stored(kv_cache_spec_kind=None)).full_attention
    assert one(stored(block_hashes=[b"\x01" * 32, b"\x02" * 32])).hashes == (b"\x01" * 32, b"\x02" * 32)
    assert one(stored(token_ids=[], medium="CPU")).tokens == []
    left = {"type": "BlockRemoved", "block_hashes": [5], "remaining_copy_counts": [2]}
    assert one(left).remaining == (2,)


def test_events_of_unknown_kinds_are_counted() -> None:
    batch = decode(frames([1.0, [{"type": "BlockPinned", "block_hashes": [1]}, ["Whatever", 1]], 0]))
    assert (batch.events, batch.unread) == ((), 2)


def test_the_replay_protocol() -> None:
    assert replay_request(258) == [b"", b"\0\0\0\0\0\0\1\2"]
    assert is_end_of_replay([b"", END_OF_REPLAY, b""])
    assert not is_end_of_replay(frames([1.0, []]))
    assert decode(frames([1.0, []])[1:]).seq == 7, "a replay may come without its empty frame"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ([b"x"], "frames"),
        ([b"t", b"1234567", b""], "7 bytes"),
        ([b"t", b"\xff" * 8, b""], "no engine can have reached"),
        ([b"t", bytes(8), b"\xc1"], "not msgpack"),
        (frames({"events": []}), "not \\[time"),
        (frames([1.0, 5]), "not \\[time"),
        (frames([None, []]), "time"),
        (frames([float("nan"), []]), "time"),
        (frames([1.0, [], -1]), "rank"),
        (frames([1.0, [5], 0]), "neither a map"),
        (frames([1.0, [{}], 0]), "no tag"),
        (frames([1.0, [stored(block_hashes=None)], 0]), "hashes"),
        (frames([1.0, [stored(block_hashes=[1.5, 2])], 0]), "64-bit"),
        (frames([1.0, [stored(block_size=0)], 0]), "size"),
        (frames([1.0, [stored(token_ids=[7777, 2, 3])], 0]), "as many"),
        (frames([1.0, [stored(token_ids=[7777, 2, 3, -1])], 0]), "token id"),
        (frames([1.0, [stored(token_ids="7777")], 0]), "as many"),
        (frames([1.0, [stored(extra_keys=[None])], 0]), "entry a block"),
        (frames([1.0, [stored(group_idx="a")], 0]), "group"),
        (frames([1.0, [stored(medium=3)], 0]), "medium"),
        (frames([1.0, [stored(lora_name=3)], 0]), "adapter"),
        (
            frames([1.0, [{"type": "BlockRemoved", "block_hashes": [1], "remaining_copy_counts": []}]]),
            "copies",
        ),
    ],
)
def test_what_is_no_batch_is_refused_with_a_sentence_without_content(message: list[bytes], why: str) -> None:
    with pytest.raises(Malformed, match=why) as refused:
        decode(message)
    assert "7777" not in str(refused.value)
    assert str(refused.value).endswith(".")


def test_damaged_messages_are_refused_or_read_but_never_crash() -> None:
    rng = random.Random(7)
    good = frames([1795981800.9, [stored(), {"type": "BlockRemoved", "block_hashes": [5]}], 3])
    refused = 0
    for _ in range(3000):
        damaged = bytearray(good[2])
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            decode(
                [good[0], good[1], bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])]
            )
        except Malformed:
            refused += 1
    assert refused > 1000


def test_a_stored_event_shows_no_tokens() -> None:
    assert "1, 2, 3" not in repr(one(stored()))
