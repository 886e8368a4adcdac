"""An instance's row as text with places for its figures: how rows are made when only counts have changed.

A row from its parts costs 30 us. Most of it stays as it was since the last time, for as long as nothing but
outcomes came: then its text is taken again, with new counts, ages and stamp, at a tenth of that.
"""

from __future__ import annotations

import re
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minds.capacity.live import Live
from minds.capacity.registers import READING_VALID_MS
from minds.staleness import changes_at_ms
from minds.windows import COUNTS, SKETCHES, SPANS_MS
from schemas.fastpath import encode

AGED_FOR_MS = 1_000
"""How long a text with ages is used: what is summed from its row is no older than that."""
_HEAD = re.compile(rb'^\{"as_of_ms":\d+,(.*?"epoch":\d+,)"version":\d+,')
_AGE = re.compile(rb'"age_ms":(\d+)\.0')
_WINDOWS = b'"windows":['
_SAYS_NOTHING = re.compile(rb'"[a-z_]+":\{\},')
"""What is wholly unknown is left out: a reader takes it so."""
_PLACES = len(SPANS_MS)
_BITS = np.tile(1 << np.arange(len(COUNTS)), _PLACES)


class RowText:
    """The text of one row, while it holds. ``key`` is its record's, None where the row of another pool is the
    one that is published. ``until_ms`` is when age alone makes it another, and ``told`` has the bits of the
    counts that it tells, of COUNTS: the others are 0 in all windows.
    """

    __slots__ = ("_ages_at_ms", "_ages_before", "_chosen", "_pattern", "key", "told", "until_ms")

    def __init__(
        self,
        key: bytes | None,
        pattern: bytes,
        ages_at_ms: list[int],
        ages_before: int,
        until_ms: float,
        told: int,
    ) -> None:
        self.key = key
        self._pattern = pattern
        self._ages_at_ms = ages_at_ms
        self._ages_before = ages_before
        self._chosen = _chosen(told)
        self.until_ms = until_ms
        self.told = told

    def filled(self, now_ms: int, version: int, counts: list[int]) -> bytes:
        """The row of this moment; ``counts`` are those of its windows, one after the other."""
        told = self._chosen(counts)
        if not self._ages_at_ms:
            return self._pattern % (now_ms, version, *told)
        ages = [now_ms - at_ms for at_ms in self._ages_at_ms]
        before = self._ages_before
        return self._pattern % (now_ms, version, *ages[:before], *told, *ages[before:])


@cache
def _chosen(told: int) -> Any:
    """Takes the counts of these bits out of those of all windows."""
    each = [column for column in range(len(COUNTS)) if told >> column & 1]
    return itemgetter(*(place * len(COUNTS) + column for place in range(_PLACES) for column in each))


@cache
def _places_for(told: int) -> bytes:
    names = [name for column, name in enumerate(COUNTS) if told >> column & 1]
    return b",".join(b'"%s":%%d' % name.encode() for name in names)


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
    windows = encode(row.windows)
    end = begin + len(_WINDOWS) - 1 + len(windows)
    before, ages_at_ms = _aged(value[head.end() : begin], now_ms)
    after, later = _aged(value[end:], now_ms)
    if before is None or after is None:
        return None
    pattern = b'{"as_of_ms":%%d,%b"version":%%d,%b%b[%b]%b' % (
        _escaped(head.group(1)),
        _SAYS_NOTHING.sub(b"", before),
        _WINDOWS[:-1],
        b",".join(_window(window, _places_for(told)) for window in row.windows),
        after,
    )
    ages_at_ms, count = ages_at_ms + later, len(ages_at_ms)
    key = row.instance.encode() if row.pools[0] == pool else None
    return RowText(key, pattern, ages_at_ms, count, _holds_until_ms(ages_at_ms, now_ms), told)


def _window(window: Any, places: bytes) -> bytes:
    shapes = [(name, getattr(window, name)) for name in (f"{each}_ms" for each in SKETCHES)]
    known = [b',"%b":%b' % (name.encode(), encode(shape)) for name, shape in shapes if shape is not None]
    return b'{"span_ms":%b,%b%b}' % (encode(window.span_ms), places, b"".join(known))


def _escaped(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")


def _aged(text: bytes, now_ms: int) -> tuple[bytes | None, list[int]]:
    """The text with places for its ages, and when each was 0; None where one is none of ours."""
    text = _escaped(text)
    if b'"age_ms":' not in text:
        return text, []
    ages = [now_ms - int(age) for age in _AGE.findall(text)]
    if len(ages) != text.count(b'"age_ms":'):
        return None, []
    return _AGE.sub(b'"age_ms":%d.0', text), ages


def _holds_until_ms(ages_at_ms: list[int], now_ms: int) -> float:
    until_ms = now_ms + AGED_FOR_MS if ages_at_ms else float("inf")
    for at_ms in ages_at_ms:
        if at_ms >= now_ms:
            return now_ms  # a clock ahead of ours: such an age does not grow
        until_ms = min(until_ms, changes_at_ms(at_ms, now_ms, READING_VALID_MS) - 1)
    return until_ms
