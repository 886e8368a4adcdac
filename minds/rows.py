"""The reader's side of compacted rows: newest by (epoch, version), fenced by claims, aged to unknown.

The same view serves routers, streams and tools. It is fed records in partition order and never asks the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from minds.staleness import Quality, quality_of
from schemas.codec import Headers, decode_row
from schemas.operations import CLAIM_KEY
from schemas.topics import Topic

TOMBSTONE_HEADER = "row-version"
"""A tombstone has no value, so this header carries its ``epoch/version``: a zombie's is refused too."""


@dataclass(slots=True)
class SeenRow:
    """A row and where it was read. ``row`` is a struct of the fast path."""

    row: Any
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a record changed: a row put or removed, or all rows of a partition fenced by a claim."""

    kind: Literal["put", "removed", "claimed"]
    key: str
    row: Any = None


class RowView:
    """All rows of one compacted topic as this reader may trust them."""

    def __init__(self, topic: Topic) -> None:
        if not topic.compacted:
            raise ValueError(f"{topic.name} is not compacted, so it has no rows to view.")
        self.topic = topic
        self._rows: dict[str, SeenRow] = {}
        self._removed: dict[str, tuple[int, int]] = {}
        self._claims: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def apply(
        self, partition: int, offset: int, key: bytes | None, headers: Headers, value: bytes | None
    ) -> Change | None:
        """Take one record; None where it changed nothing (older, or from before the last claim).

        Raises schemas.codec.Refused where the value can't be used; the view is then unchanged.
        """
        name = (key or b"").decode("utf-8", "replace")
        if name == CLAIM_KEY and self.topic.claimed:
            if value is None:
                return None
            self._claims[partition] = max(offset, self._claims.get(partition, -1))
            return Change("claimed", str(partition))
        if value is None:
            return self._remove(partition, name, headers)
        row = decode_row(self.topic, headers, value)
        stamp = (row.epoch, row.version)
        if row.epoch < self._claims.get(partition, 0) or stamp < self._removed.get(name, (-1, -1)):
            return None
        seen = self._rows.get(name)
        if seen is not None and (seen.row.epoch, seen.row.version) >= stamp:
            return None
        self._rows[name] = SeenRow(row, partition, offset)
        self._removed.pop(name, None)
        return Change("put", name, row)

    def _remove(self, partition: int, name: str, headers: Headers) -> Change | None:
        stamp = _tombstone_stamp(headers)
        seen = self._rows.get(name)
        if stamp is not None:
            if stamp[0] < self._claims.get(partition, 0):
                return None
            if seen is not None and (seen.row.epoch, seen.row.version) > stamp:
                return None
            self._removed[name] = stamp
        if seen is None:
            return None
        del self._rows[name]
        return Change("removed", name)

    def claim_of(self, partition: int) -> int | None:
        """The offset of the partition's last claim, which is its owner's epoch; None where none was read."""
        return self._claims.get(partition)

    def get(self, key: str, now_ms: float) -> tuple[Any, Quality] | None:
        """A row and its quality now, or None where there is no such row."""
        seen = self._rows.get(key)
        return None if seen is None else (seen.row, self._quality(seen, now_ms))

    def row(self, key: str) -> Any | None:
        """The row whatever its age, or None."""
        seen = self._rows.get(key)
        return None if seen is None else seen.row

    def items(self, now_ms: float) -> Iterator[tuple[str, Any, Quality]]:
        """All rows with their quality now."""
        for key, seen in self._rows.items():
            yield key, seen.row, self._quality(seen, now_ms)

    def rows(self) -> Iterator[SeenRow]:
        """All rows whatever their age, with where they were read."""
        return iter(self._rows.values())

    def _quality(self, seen: SeenRow, now_ms: float) -> Quality:
        if seen.row.epoch < self._claims.get(seen.partition, 0):
            return "unknown"
        return quality_of(now_ms - seen.row.as_of_ms, seen.row.valid_for_ms)


def tombstone_headers(epoch: int, version: int) -> list[tuple[str, bytes]]:
    """Headers of a tombstone written under this epoch and version."""
    return [(TOMBSTONE_HEADER, f"{epoch}/{version}".encode())]


def _tombstone_stamp(headers: Headers) -> tuple[int, int] | None:
    for name, value in headers:
        if name == TOMBSTONE_HEADER:
            epoch, _, version = value.decode("ascii", "replace").partition("/")
            if epoch.isdigit() and version.isdigit():
                return int(epoch), int(version)
    return None
