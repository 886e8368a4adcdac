"""KV memory of a fast simulated instance: shared prefix blocks by hash, everything else as a mere count.

The rules are those of :class:`sim.engine.kv_cache.KvCache` (reference counts, LRU eviction, within one
sequence the tail before the head, blank memory first), but a hash names a whole block of the trace
(``block_tokens``, 512) while memory is given out in the engine's own small units (``unit_tokens``, 16). What
has no hash needs no identity, so it is counted and not listed. With ``unit_tokens == block_tokens`` the two
classes behave alike, which a test shows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """``total_units`` units of ``unit_tokens`` tokens; a hashed block takes ``block_units`` of them."""

    __slots__ = ("_evictable", "_refs", "blank", "block_tokens", "block_units", "total_units", "unit_tokens")

    def __init__(self, total_units: int, unit_tokens: int = 16, block_tokens: int = 512) -> None:
        if total_units < 1 or unit_tokens < 1 or block_tokens < 1 or block_tokens % unit_tokens:
            raise ValueError(
                "A block pool needs at least one unit of at least one token, and blocks of whole units; got "
                f"{total_units} units of {unit_tokens} tokens and blocks of {block_tokens}."
            )
        self.total_units = total_units
        self.unit_tokens = unit_tokens
        self.block_tokens = block_tokens
        self.block_units = block_tokens // unit_tokens
        self.blank = total_units
        """Units without any content."""
        self._refs: dict[int, int] = {}  # resident blocks by hash: how many sequences hold them
        self._evictable: OrderedDict[int, None] = OrderedDict()  # those that nobody holds, oldest first

    @property
    def free_units(self) -> int:
        """Units that nobody holds: blank ones and those of cached blocks that may be evicted."""
        return self.blank + len(self._evictable) * self.block_units

    @property
    def used_units(self) -> int:
        """Units that at least one sequence holds."""
        return self.total_units - self.free_units

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be found by their hash, held or not."""
        return len(self._refs)

    def match(self, hashes: Sequence[int], limit: int) -> tuple[int, int]:
        """``(hits, idle)``: leading blocks of ``hashes[:limit]`` that are resident, and those of them that
        nobody holds."""
        refs = self._refs
        hits = idle = 0
        for block in hashes[:limit]:
            held = refs.get(block)
            if held is None:
                break
            hits += 1
            if held == 0:
                idle += 1
        return hits, idle

    def hold(self, blocks: Sequence[int]) -> None:
        """One more reference to each of these resident blocks."""
        refs = self._refs
        evictable = self._evictable
        for block in blocks:
            held = refs[block]
            if held == 0:
                del evictable[block]
            refs[block] = held + 1

    def take(self, units: int) -> None:
        """Give out free units, blank ones first; the caller has checked that there are so many."""
        blank = self.blank
        while blank < units:
            block, _none = self._evictable.popitem(last=False)
            del self._refs[block]
            blank += self.block_units
        self.blank = blank - units

    def register(self, blocks: Sequence[int], held: list[int]) -> None:
        """Make full blocks findable and list them in ``held``; their units were taken before.

        Where a hash is resident already the older block keeps it, and the newer one stays without a name.
        """
        refs = self._refs
        for block in blocks:
            if block not in refs:
                refs[block] = 1
                held.append(block)

    def release(self, held: list[int], unnamed_units: int) -> None:
        """Drop one reference to each block of ``held`` (in order of the prompt) and free unnamed units."""
        refs = self._refs
        evictable = self._evictable
        for block in reversed(held):
            count = refs[block] - 1
            refs[block] = count
            if count == 0:
                evictable[block] = None
        self.blank += unnamed_units

    def clear(self) -> None:
        """Everything is lost: the process that held it is gone."""
        self._refs.clear()
        self._evictable.clear()
        self.blank = self.total_units

    def check(self) -> None:
        """Raise AssertionError where the books don't balance; for tests."""
        assert 0 <= self.blank <= self.total_units, f"{self.blank} blank of {self.total_units} units"
        assert 0 <= self.free_units <= self.total_units
        assert all(count >= 0 for count in self._refs.values())
        assert {block for block, count in self._refs.items() if count == 0} == set(self._evictable)
