"""KvCacheView: what one engine rank has cached, folded from its KV events. Pure.

Two things are followed. The *engine's blocks*: which of its own block names it holds on which medium, in how
many copies (an engine may hold a block twice, and each copy is removed by an event of its own). And the
*fleet's blocks* of 512 tokens that they make up: one is held on a medium while every engine block that it
spans is. Token ids become hashes here and are dropped; what an engine names without ever having told its
tokens, or whose beginning is unknown, is counted but makes no fleet block: too little is claimed, never too
much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from minds.prefix_keys import BlockHasher, Chain
from sources.kv_events.wire import DEVICE, BlockHash, Cleared, KvChange, Removed, Stored

MAX_BLOCKS_KNOWN = 2_000_000
"""Engine blocks of one rank (32 million tokens at 16 each): a stream that stores more never removes."""


@dataclass(frozen=True, slots=True)
class FleetChange:
    """What became of fleet blocks: each hash stands for its whole prefix. ``cleared`` means all media."""

    kind: Literal["stored", "removed", "cleared"]
    medium: str = DEVICE
    blocks: tuple[str, ...] = ()


class _Span:
    """A fleet block and the engine blocks that it spans."""

    __slots__ = ("name", "parts")

    def __init__(self, name: str, parts: list[_Block]) -> None:
        self.name = name
        self.parts = parts

    def held_on(self, medium: str) -> bool:
        return all(medium in part.copies for part in self.parts)


class _Block:
    """An engine's block. One that is gone is kept while one that is held follows it in a fleet block."""

    __slots__ = ("before", "chain", "completes", "copies", "followers", "group", "name", "parent", "spans")

    def __init__(self, group: int, name: BlockHash) -> None:
        self.group = group
        self.name = name
        self.parent: BlockHash | None = None
        self.chain: Chain | None = None
        self.before: _Block | None = None
        """The block before, where a fleet block spans both."""
        self.followers = 0
        """Blocks whose ``before`` this is."""
        self.completes = False
        """A fleet block ends in it."""
        self.copies: Mapping[str, int] = {}
        self.spans: list[_Span] = []


class KvCacheView:
    """Folds events; each fold returns what changed for the fleet, in order."""

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self._groups: dict[int, dict[BlockHash, _Block]] = {}
        self._known = 0
        self._held: dict[str, Counter[str]] = {}
        self._speaker: int | None = None
        """The first full-attention group: hybrid models hold a prefix's blocks once for each group."""
        self._copies: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {(): {}}
        self.unknown_removals = 0
        """Removals of blocks that were never stored: normal after a loss, else a sign of one."""
        self.unusable: str | None = None
        """Why this engine's events can't be used, a sentence; None while they can."""

    def content(self) -> dict[tuple[str, int, BlockHash], int]:
        """The exact content: copies by medium, cache group and the engine's name of the block."""
        return {
            (medium, group, name): copies
            for group, blocks in self._groups.items()
            for name, block in blocks.items()
            for medium, copies in block.copies.items()
        }

    def fleet_blocks(self) -> dict[str, frozenset[str]]:
        """The fleet blocks that are held, by medium."""
        return {medium: frozenset(names) for medium, names in self._held.items() if names}

    @property
    def known(self) -> int:
        """Engine blocks in memory here, those included that are kept for what follows them."""
        return self._known

    def fold(self, event: KvChange) -> list[FleetChange]:
        """Apply one event."""
        if isinstance(event, Cleared):
            return self.clear()
        if self.unusable:
            return []
        changes = _Changes()
        if isinstance(event, Stored):
            self._store(event, changes)
        else:
            self._remove(event, changes)
        if self._known > MAX_BLOCKS_KNOWN:
            self.unusable = f"It stored over {MAX_BLOCKS_KNOWN:,} blocks without removing them."
        if self.unusable:
            self._empty()
            return [FleetChange("cleared")]
        return changes.runs

    def clear(self) -> list[FleetChange]:
        """Nothing is held, or nothing is known, any more."""
        told = any(self._held.values())
        self._empty()
        self._speaker, self.unusable = None, None
        return [FleetChange("cleared")] if told else []

    def _empty(self) -> None:
        self._groups, self._held, self._known = {}, {}, 0

    def _store(self, event: Stored, changes: _Changes) -> None:
        blocks = self._groups.setdefault(event.group, {})
        speaks = bool(event.tokens) and event.full_attention and self._speaker in (None, event.group)
        if speaks:
            self._speaker = event.group
        parent = event.parent
        for index, name in enumerate(event.hashes):
            block = blocks.get(name)
            if block is None:
                block = blocks[name] = _Block(event.group, name)
                self._known += 1
            if speaks and block.chain is None:
                self._link(block, event, index, parent, changes)
            elif speaks and block.parent != parent:
                self.unusable = (
                    "It gives one name to blocks with different beginnings, so a name does not say what "
                    "goes before a block."
                )
                return
            self._set(block, event.medium, block.copies.get(event.medium, 0) + 1, changes)
            parent = name

    def _link(
        self, block: _Block, event: Stored, index: int, parent: BlockHash | None, changes: _Changes
    ) -> None:
        """Give a block its place in a chain, and make the fleet blocks that end in it."""
        before = None if parent is None else self._groups[event.group].get(parent)
        if parent is None:
            chain = self._hasher.start(event.adapter)
        elif before is not None and before.chain is not None:
            chain = before.chain
        else:
            return
        extra = event.extras[index] if event.extras else b""
        size = event.block_tokens
        names, block.chain = chain.extend(event.tokens[index * size : (index + 1) * size], extra=extra)
        block.parent, block.completes = parent, bool(names)
        if chain.rest_tokens and before is not None:
            block.before = before
            before.followers += 1
        held, block.copies = block.copies, {}
        for number, name in enumerate(names):
            span = _Span(name, _back_to_the_boundary(block) if number == 0 else [block])
            for part in span.parts:
                part.spans.append(span)
        for medium, copies in held.items():  # it was held before its place was known
            self._set(block, medium, copies, changes)

    def _set(self, block: _Block, medium: str, copies: int, changes: _Changes) -> None:
        """Set the copies of a block, and tell what that makes of the fleet blocks that span it."""
        before = block.copies.get(medium, 0)
        affected = block.spans if bool(before) != bool(copies) else ()
        if not copies:
            for span in affected:
                if span.held_on(medium):
                    self._held[medium][span.name] -= 1
                    if not self._held[medium][span.name]:
                        del self._held[medium][span.name]
                        changes.add("removed", medium, span.name)
        now = {name: count for name, count in block.copies.items() if name != medium}
        if copies:
            now[medium] = copies
        # Nearly all blocks share one of a few mappings.
        block.copies = self._copies.setdefault(tuple(sorted(now.items())), now)
        if copies:
            for span in affected:
                if span.held_on(medium):
                    held = self._held.setdefault(medium, Counter())
                    held[span.name] += 1
                    if held[span.name] == 1:
                        changes.add("stored", medium, span.name)

    def _remove(self, event: Removed, changes: _Changes) -> None:
        blocks = self._groups.get(event.group, {})
        for index, name in enumerate(event.hashes):
            block = blocks.get(name)
            copies = 0 if block is None else block.copies.get(event.medium, 0)
            if block is None or not copies:
                self.unknown_removals += 1
                continue
            left = copies - 1 if event.remaining is None else event.remaining[index]
            self._set(block, event.medium, left, changes)
            if not block.copies:
                self._prune(block)

    def _prune(self, gone: _Block) -> None:
        """Drop a block that is gone, and those before it, once none that is held follows them.

        A fleet block lives with the engine block that it ends in; all others that it spans come before.
        """
        block: _Block | None = gone
        while block is not None and not block.copies and not block.followers:
            for span in block.spans:
                for part in span.parts:
                    if part is not block:
                        part.spans.remove(span)
            del self._groups[block.group][block.name]
            self._known -= 1
            if block.before is not None:
                block.before.followers -= 1
            block = block.before


class _Changes:
    """Changes of one event, neighbours of the same kind and medium in one."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[FleetChange] = []

    def add(self, kind: Literal["stored", "removed"], medium: str, name: str) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.kind, last.medium) == (kind, medium):
            self.runs[-1] = FleetChange(kind, medium, (*last.blocks, name))
        else:
            self.runs.append(FleetChange(kind, medium, (name,)))


def _back_to_the_boundary(block: _Block) -> list[_Block]:
    """The engine blocks that the first fleet block to end in this one spans."""
    parts, at = [block], block.before
    while at is not None:
        parts.append(at)
        at = None if at.completes else at.before
    return parts
