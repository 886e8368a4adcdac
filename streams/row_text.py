"""An instance's row as text with places for its figures: how rows are made when only counts have changed.

A row from its parts costs 30 us and more. Most of it stays as it was since the last time, for as long as
nothing but outcomes came: then its text is taken again, with new counts, ages and stamp, for 1 us; with new
percentiles too for 10 us.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minds.capacity.live import Live
from minds.capacity.registers import READING_VALID_MS
from minds.capacity.rows import QUIET_VALID_MS
from minds.staleness import changes_at_ms
from minds.windows import COUNTS, SKETCHES, SPANS_MS
from schemas.fastpath import encode
from streams.record_writer import AGE, NUMBER, piece

AGED_FOR_MS = 1_000
"""How long a text with ages is used: what is summed from its row is no older than that."""
HOLDS_FOR_MS = 5_000
"""How long any text is used: so late shows what nobody says has changed, as a GPU's first health."""
_HEAD = re.compile(rb'^\{"as_of_ms":\d+,(.*?"epoch":\d+,)"version":\d+,')
_AGE = re.compile(rb'"age_ms":(\d+)\.0')
_WINDOWS = b'"windows":['
_SAYS_NOTHING = re.compile(rb'"[a-z_]+":\{\},')
"""What is wholly unknown is left out: a reader takes it so."""
_PLACES = len(SPANS_MS)
_BITS = np.tile(1 << np.arange(len(COUNTS)), _PLACES)
_NOW, _VERSION, _COUNTS = 0, 1, 2
"""The columns of the numbers that a text takes: the time, the row's version, then the windows' counts."""


class RowText:
    """The text of one row, while it holds, as a template of streams.record_writer.

    ``key`` is its record's, None where the row of another pool is the one that is published. ``until_ms`` is
    when age alone makes it another, and ``told`` has the bits of the counts that it tells, of COUNTS: the
    others are 0 in all windows.
    """

    __slots__ = ("_after", "_before", "is_quiet", "key", "template", "told", "until_ms")

    def __init__(
        self,
        key: bytes | None,
        before: bytes,
        windows: Sequence[Any],
        after: bytes,
        until_ms: float,
        told: int,
        is_quiet: bool,
    ) -> None:
        self.key = key
        self._before = before
        self._after = after
        self.until_ms = until_ms
        self.told = told
        self.is_quiet = is_quiet
        """Whether it says that only news can change it: news then makes it another."""
        self.template = b""
        self.tell_shapes(windows)

    def tell_shapes(self, windows: Sequence[Any]) -> None:
        """Tell other percentiles: those of ``windows`` (anything with the fields of SKETCHES)."""
        told = self.told
        texts = [_places_for(place, told) + piece(_shapes(each)) for place, each in enumerate(windows)]
        self.template = b"".join([self._before, *texts, self._after])


def numbers_of(now_ms: int, version: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """What texts take: ``counts`` is a row a text, of its windows one after the other; versions follow
    ``version``."""
    numbers = np.empty((len(counts), _COUNTS + counts.shape[1]), np.int64)
    numbers[:, _NOW] = now_ms
    numbers[:, _VERSION] = np.arange(version + 1, version + 1 + len(counts))
    numbers[:, _COUNTS:] = counts
    return numbers


@cache
def _places_for(place: int, told: int) -> bytes:
    """The beginning of a window: its counts of these bits."""
    text, parts = (b"," if place else b"") + b'{"span_ms":%d.0,' % SPANS_MS[place], []
    for column, name in enumerate(COUNTS):
        if told >> column & 1:
            text += b'"%b":' % name.encode()
            parts.append(piece(text, NUMBER, _COUNTS + place * len(COUNTS) + column))
            text = b","
    return b"".join(parts)


def _shapes(window: Any) -> bytes:
    """The rest of a window."""
    shapes = [(name, getattr(window, name)) for name in _SHAPES]
    told = [b',"%b":%b' % (name.encode(), encode(shape)) for name, shape in shapes if shape is not None]
    return b"".join([*told, b"}"])


_SHAPES = tuple(f"{each}_ms" for each in SKETCHES)


def told_by(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of what is not 0 in any window, a row of windows' counts a row."""
    found: NDArray[np.int64] = np.bitwise_or.reduce(np.where(counts != 0, _BITS, 0), axis=1)
    return found


def row_text(row: Any, value: bytes, live: Live, pool: str, now_ms: int) -> RowText | None:
    """The text of an instance's row for a pool (struct of schemas.tables.InstanceRow), made as ``value`` now.

    None where more than counts and ages may change by itself: signals, an instance in quarantine, or ages
    that are no whole milliseconds.
    """
    if live.has_signals or row.quarantined or not row.windows:
        return None
    head = _HEAD.match(value)
    begin = value.find(_WINDOWS)
    if head is None or begin < 0:
        return None
    told = 1 | sum(
        1 << column for column, name in enumerate(COUNTS) if any(getattr(each, name) for each in row.windows)
    )
    end = begin + len(_WINDOWS) - 1 + len(encode(row.windows))
    before, ages_at_ms = _aged(_SAYS_NOTHING.sub(b"", value[head.end() : begin]) + _WINDOWS, now_ms)
    after, later = _aged(b"]" + value[end:], now_ms)
    if before is None or after is None:
        return None
    begins = piece(b'{"as_of_ms":', NUMBER, _NOW)
    begins += piece(b"," + head.group(1) + b'"version":', NUMBER, _VERSION)
    return RowText(
        row.instance.encode() if row.pools[0] == pool else None,
        begins + piece(b",") + before,
        row.windows,
        after,
        _holds_until_ms(ages_at_ms + later, now_ms),
        told,
        row.valid_for_ms >= QUIET_VALID_MS,
    )


def _aged(text: bytes, now_ms: int) -> tuple[bytes | None, list[int]]:
    """The text as a template that tells its ages, and when each was 0; None where one is none of ours."""
    if b'"age_ms":' not in text:
        return piece(text), []
    parts, ages_at_ms, at = [], [], 0
    for found in _AGE.finditer(text):
        at_ms = now_ms - int(found[1])
        parts.append(piece(text[at : found.start(1)], AGE, at_ms))
        ages_at_ms.append(at_ms)
        at = found.end(1)
    if len(ages_at_ms) != text.count(b'"age_ms":'):
        return None, []
    return b"".join([*parts, piece(text[at:])]), ages_at_ms


def _holds_until_ms(ages_at_ms: list[int], now_ms: int) -> float:
    until_ms: float = now_ms + (AGED_FOR_MS if ages_at_ms else HOLDS_FOR_MS)
    for at_ms in ages_at_ms:
        if at_ms >= now_ms:
            return now_ms  # a clock ahead of ours: such an age does not grow
        until_ms = min(until_ms, changes_at_ms(at_ms, now_ms, READING_VALID_MS) - 1)
    return until_ms
