"""The columns of the Azure LLM inference CSV: where they are in a header, and how one row parses."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import UTC, datetime

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

# int() alone would also take "1_000" and the digits of other scripts; 18 digits always convert.
_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AzureColumns:
    """Positions of the three columns among `width` columns; further columns are allowed and ignored."""

    timestamp: int
    context: int
    generated: int
    width: int

    @classmethod
    def from_header(cls, line: str) -> AzureColumns | None:
        """The positions in this header line, or None where a column is missing."""
        names = [name.strip() for name in _cells(line)]
        if any(name not in names for name in AZURE_COLUMNS):
            return None
        timestamp, context, generated = (names.index(name) for name in AZURE_COLUMNS)
        return cls(timestamp, context, generated, len(names))

    def parse(self, line: str) -> tuple[float, int, int]:
        """(ms since 1970, context tokens, generated tokens); ValueError with the reason for a broken row."""
        cells = _cells(line)
        if len(cells) != self.width:
            raise ValueError(f"{len(cells)} columns where the header has {self.width}")
        return (
            _parse_timestamp_ms(cells[self.timestamp]),
            _parse_count(AZURE_COLUMNS[1], cells[self.context]),
            _parse_count(AZURE_COLUMNS[2], cells[self.generated]),
        )


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise ValueError(f"not a row of comma-separated values ({error})") from None


def _parse_timestamp_ms(cell: str) -> float:
    try:
        at = datetime.fromisoformat(cell.strip())
    except ValueError:
        raise ValueError(f"TIMESTAMP {cell.strip()[:40]!r} is not a date and time") from None
    if at.tzinfo is None:  # the 2023 traces are UTC without saying so
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH).total_seconds() * 1_000.0


def _parse_count(name: str, cell: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(cell):
        raise ValueError(f"{name} {cell.strip()[:40]!r} is not a whole number")
    return int(cell)
