"""The storage rule, pure: which rows may go into one insert, and which are stored already.

ClickHouse itself holds the position: of each topic partition the greatest ``(offset, event)`` in the topic's
table. An insert is atomic only within one block of one day (a day is a partition of the table), so blocks are
cut such that this maximum never passes a row that is not stored yet: whatever an insert is followed by, a
crash or an error, what the table says is where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DAY_MS = 86_400_000
Position = tuple[int, int]
"""``(offset, event)``: an envelope's events may lie in two days, so an offset alone is not enough."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row to store: where it comes from, its time in epoch milliseconds, and all its column values."""

    partition: int
    offset: int
    event: int
    at_ms: int
    values: list[Any]

    @property
    def position(self) -> Position:
        return (self.offset, self.event)

    @property
    def day(self) -> int:
        """Days since 1970, UTC."""
        return self.at_ms // DAY_MS


def unstored(rows: Iterable[Row], stored: Mapping[int, Position]) -> list[Row]:
    """The rows beyond the stored position of their partition."""
    nowhere = (-1, -1)
    return [row for row in rows if row.position > stored.get(row.partition, nowhere)]


def cut_blocks(rows: Iterable[Row], *, max_rows: int = 50_000) -> Iterator[list[Row]]:
    """Blocks to insert one after the other; rows of a partition must come in order of their positions.

    Each block holds one day, and of each partition only a run that follows what the blocks before it hold.
    Days that alternate give more blocks, never a hole.
    """
    queues: dict[int, list[Row]] = {}
    for row in rows:
        queues.setdefault(row.partition, []).append(row)
    heads = dict.fromkeys(queues, 0)
    while queues:
        day = min(queue[heads[partition]].day for partition, queue in queues.items())
        block: list[Row] = []
        for partition in list(queues):
            queue, start = queues[partition], heads[partition]
            end = start
            while end < len(queue) and queue[end].day == day and len(block) + end - start < max_rows:
                end += 1
            block += queue[start:end]
            heads[partition] = end
            if end == len(queue):
                del queues[partition]
        yield block
