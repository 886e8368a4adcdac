"""Paged KV cache: a pool of blocks with reference counts, a prefix cache and LRU eviction.

A block is an integer. It is *referenced* (held by at least one sequence), *cached* (nobody holds it, but its
content is known by a hash and can be taken up again) or *blank*. Cached blocks are what eviction takes, least
recently released first; within one sequence the tail goes before the head, because a tail without its head
is of no use. A hash names a block *and everything before it* (the caller chains them), so a hit on block k
implies one on all blocks before it as long as they are resident.
"""

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """A pool of ``total_blocks`` blocks of ``block_tokens`` tokens each."""

    __slots__ = (
        "_blank",
        "_block_of_hash",
        "_evictable",
        "_hash_of_block",
        "_refs",
        "block_tokens",
        "total_blocks",
    )

    def __init__(self, total_blocks: int, block_tokens: int = 16) -> None:
        if total_blocks < 1 or block_tokens < 1:
            raise ValueError(
                f"A KV cache needs at least one block of at least one token, not {total_blocks} blocks of "
                f"{block_tokens} tokens."
            )
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self._refs = [0] * total_blocks
        self._hash_of_block: list[int | None] = [None] * total_blocks
        self._block_of_hash: dict[int, int] = {}
        self._blank = list(range(total_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody references: blank ones and cached ones that may be evicted."""
        return len(self._blank) + len(self._evictable)

    @property
    def used_blocks(self) -> int:
        """Blocks that at least one sequence references."""
        return self.total_blocks - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be found by their hash, referenced or not."""
        return len(self._block_of_hash)

    @property
    def usage(self) -> float:
        """Referenced share of the pool, 0 to 1. Evictable cached blocks count as free, as in vLLM."""
        return self.used_blocks / self.total_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that ``tokens`` tokens occupy."""
        return -(-tokens // self.block_tokens)

    def references(self, block: int) -> int:
        """How many sequences hold ``block``."""
        return self._refs[block]

    def hit_blocks(self, hashes: Sequence[int], limit: int) -> int:
        """How many leading blocks of ``hashes`` are resident; at most ``limit``."""
        known = self._block_of_hash
        hits = 0
        for block_hash in hashes:
            if hits >= limit or block_hash not in known:
                break
            hits += 1
        return hits

    def admit(self, hashes: Sequence[int], hits: int, new_blocks: int) -> list[int] | None:
        """Take the first ``hits`` blocks of ``hashes`` from the cache and ``new_blocks`` fresh ones.

        Returns all of them in order, or ``None`` (and changes nothing) where they don't fit: hits that only
        the cache held stop being evictable, so they use up free blocks as well.
        """
        refs = self._refs
        shared = [self._block_of_hash[h] for h in hashes[:hits]]
        idle_hits = sum(1 for block in shared if refs[block] == 0)
        if idle_hits + new_blocks > self.free_blocks:
            return None
        for block in shared:
            if refs[block] == 0:
                del self._evictable[block]
            refs[block] += 1
        self._take(new_blocks, shared)
        return shared

    def extend(self, blocks: list[int], new_blocks: int) -> bool:
        """Append ``new_blocks`` fresh blocks to a sequence's ``blocks``; ``False`` if they don't fit."""
        if new_blocks > self.free_blocks:
            return False
        self._take(new_blocks, blocks)
        return True

    def register(self, blocks: Sequence[int], hashes: Sequence[int], start: int, stop: int) -> None:
        """Make ``blocks[start:stop]``, now full, findable under ``hashes[start:stop]``.

        Where a hash is resident already (two sequences computed the same prefix side by side) the older block
        keeps it and the newer one stays anonymous.
        """
        known = self._block_of_hash
        for index in range(start, stop):
            block, block_hash = blocks[index], hashes[index]
            if block_hash not in known and self._hash_of_block[block] is None:
                known[block_hash] = block
                self._hash_of_block[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of ``blocks``; what nobody holds becomes evictable or blank."""
        refs = self._refs
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block] == 0:
                if self._hash_of_block[block] is None:
                    self._blank.append(block)
                else:
                    self._evictable[block] = None

    def _take(self, count: int, into: list[int]) -> None:
        """Move ``count`` free blocks to ``into``, blank ones first; the caller checked that there are."""
        refs = self._refs
        blank = self._blank
        for _ in range(count):
            if blank:
                block = blank.pop()
            else:
                block, _none = self._evictable.popitem(last=False)
                old_hash = self._hash_of_block[block]
                if old_hash is not None:
                    del self._block_of_hash[old_hash]
                    self._hash_of_block[block] = None
            refs[block] = 1
            into.append(block)
