"""The KV cache: sharing, eviction order, and a model test of its books."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import KvCache


def fill(kv: KvCache, hashes: list[int]) -> list[int]:
    """A sequence that computed and registered all of ``hashes``."""
    hits = kv.hit_blocks(hashes, len(hashes))
    blocks = kv.admit(hashes, hits, len(hashes) - hits)
    assert blocks is not None
    kv.register(blocks, hashes, hits, len(hashes))
    return blocks


def test_second_sequence_shares_the_prefix_and_takes_only_what_is_new() -> None:
    kv = KvCache(10)
    first = fill(kv, [1, 2, 3])
    second = fill(kv, [1, 2, 9, 10])
    assert second[:2] == first[:2]
    assert kv.used_blocks == 5
    assert kv.references(first[0]) == 2
    kv.release(first)
    assert kv.used_blocks == 4
    kv.release(second)
    assert kv.used_blocks == 0
    assert kv.cached_blocks == 5
    assert kv.usage == 0.0


def test_released_blocks_stay_findable_until_space_is_needed() -> None:
    kv = KvCache(4)
    kv.release(fill(kv, [1, 2, 3, 4]))
    assert kv.hit_blocks([1, 2, 3, 4], 4) == 4
    kv.release(fill(kv, [50, 51]))  # evicts two
    assert kv.hit_blocks([1, 2, 3, 4], 4) == 2  # the tail went first
    assert kv.hit_blocks([50, 51], 2) == 2


def test_least_recently_used_prefix_goes_first() -> None:
    kv = KvCache(4)
    kv.release(fill(kv, [1, 2]))
    kv.release(fill(kv, [11, 12]))
    kv.release(fill(kv, [1, 2]))  # used again
    kv.release(fill(kv, [21, 22]))
    assert kv.hit_blocks([1, 2], 2) == 2
    assert kv.hit_blocks([11, 12], 2) == 0


def test_admission_that_does_not_fit_changes_nothing() -> None:
    kv = KvCache(4)
    held = fill(kv, [1, 2])
    kv.release(fill(kv, [7]))
    # One hit that only the cache holds plus two new blocks would need three; two are free.
    assert kv.admit([7, 8, 9], 1, 2) is None
    assert kv.used_blocks == 2
    assert kv.hit_blocks([7], 1) == 1
    assert not kv.extend(held, 3)
    assert len(held) == 2


def test_equal_blocks_computed_side_by_side_keep_one_hash() -> None:
    kv = KvCache(4)
    one, two = kv.admit([5], 0, 1), kv.admit([5], 0, 1)
    assert one is not None
    assert two is not None
    kv.register(one, [5], 0, 1)
    kv.register(two, [5], 0, 1)
    kv.release(two)
    assert kv.hit_blocks([5], 1) == 1
    assert kv.cached_blocks == 1
    kv.release(one)
    assert (kv.used_blocks, kv.cached_blocks) == (0, 1)


def test_a_cache_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        KvCache(0)


@settings(max_examples=150, deadline=None)
@given(
    total=st.integers(1, 12),
    actions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 5)), max_size=60),
)
def test_books_of_any_history_balance(total: int, actions: list[tuple[int, int, int]]) -> None:
    """Families share prefixes; sequences come, grow and go. Every block is held or free, never both."""
    kv = KvCache(total)
    held: list[list[int]] = []
    for kind, length, family in actions:
        if kind <= 1:
            hashes = [family * 100 + i for i in range(length)]
            hits = kv.hit_blocks(hashes, length)
            blocks = kv.admit(hashes, hits, length - hits)
            if blocks is not None:
                kv.register(blocks, hashes, hits, length)
                held.append(blocks)
        elif kind == 2 and held:
            kv.extend(held[family % len(held)], length)
        elif held:
            kv.release(held.pop(family % len(held)))
        expected = [0] * total
        for blocks in held:
            assert len(set(blocks)) == len(blocks)
            for block in blocks:
                expected[block] += 1
        assert [kv.references(b) for b in range(total)] == expected
        assert kv.used_blocks == sum(1 for count in expected if count)
        assert 0.0 <= kv.usage <= 1.0
        assert kv.cached_blocks <= total
    for blocks in held:
        kv.release(blocks)
    assert kv.used_blocks == 0
    assert kv.free_blocks == total
