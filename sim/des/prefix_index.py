"""A router's own guess of who has which prefix: from where prompts were sent, never the engines' caches."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class PrefixIndex:
    """Placements by block, forgotten least recently used first beyond an instance's own number of blocks."""

    def __init__(self, capacity_blocks: Sequence[int]) -> None:
        """``capacity_blocks``: for each instance, how many blocks it can hold at most."""
        self._capacity = list(capacity_blocks)
        self._owners: dict[int, int] = {}  # block -> bit set of instances
        self._recent: list[OrderedDict[int, None]] = [OrderedDict() for _ in self._capacity]
        self._bytes = (len(self._capacity) + 7) // 8

    def placed(self, instance: int, blocks: Sequence[int]) -> None:
        """A prompt with these blocks goes to the instance. The tail is forgotten before the head."""
        recent = self._recent[instance]
        owners = self._owners
        bit = 1 << instance
        for block in reversed(blocks):
            if block in recent:
                recent.move_to_end(block)
            else:
                recent[block] = None
                owners[block] = owners.get(block, 0) | bit
        while len(recent) > self._capacity[instance]:
            block, _none = recent.popitem(last=False)
            self._drop(block, bit)

    def forget(self, instance: int) -> None:
        """The instance restarted: its cache is empty."""
        for block in self._recent[instance]:
            self._drop(block, 1 << instance)
        self._recent[instance].clear()

    def matched_blocks(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """For every instance, how many leading blocks of a prompt it is thought to have."""
        matched = np.zeros(len(self._capacity), dtype=np.int64)
        owners = self._owners
        having = -1
        depth = 0
        for block in blocks:
            still = owners.get(block, 0) if having == -1 else having & owners.get(block, 0)
            if still != having and depth:
                self._mark(matched, having & ~still, depth)
            if not still:
                return matched
            having = still
            depth += 1
        if depth:
            self._mark(matched, having, depth)
        return matched

    def _drop(self, block: int, bit: int) -> None:
        left = self._owners[block] & ~bit
        if left:
            self._owners[block] = left
        else:
            del self._owners[block]

    def _mark(self, matched: NDArray[np.int64], instances: int, depth: int) -> None:
        if instances.bit_count() <= 4:
            while instances:
                low = instances & -instances
                matched[low.bit_length() - 1] = depth
                instances ^= low
        else:
            packed = np.frombuffer(instances.to_bytes(self._bytes, "little"), dtype=np.uint8)
            bits = np.unpackbits(packed, count=len(matched), bitorder="little")
            matched[bits.view(np.bool_)] = depth


class PlacementLog:
    """Placements of all routers as the log shows them: one index for all, since all read the same log.

    What a router placed itself and the log doesn't show yet is the router's own to remember.
    """

    def __init__(self, capacity_blocks: Sequence[int]) -> None:
        self.index = PrefixIndex(capacity_blocks)
        self._coming: deque[tuple[float, int, Sequence[int]]] = deque()

    def append(self, visible_ms: float, instance: int, blocks: Sequence[int]) -> None:
        """A placement that will be seen at ``visible_ms``; these times never fall."""
        self._coming.append((visible_ms, instance, blocks))

    def advance(self, now_ms: float) -> None:
        """Let the placements be seen that have come by now."""
        coming = self._coming
        while coming and coming[0][0] <= now_ms:
            _, instance, blocks = coming.popleft()
            self.index.placed(instance, blocks)

    def forget(self, instance: int) -> None:
        """The instance restarted: whatever was placed there before is void."""
        self.index.forget(instance)
        self._coming = deque(placement for placement in self._coming if placement[1] != instance)
