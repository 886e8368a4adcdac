"""An instance's row as text with places for its figures: how rows are made when only counts have changed.

A row from its parts costs 30 us. Most of it stays as it was since the last time, for as long as nothing but
outcomes came: then its text is taken again, with new counts, ages and stamp, at a tenth of that.
"""

from __future__ import annotations

import re
from typing import Any

from minds.capacity.live import Live
from minds.capacity.registers import READING_VALID_MS
from minds.windows import COUNTS
from schemas.fastpath import encode

AGED_FOR_MS = 1_000
"""How long a text with ages is used: what is summed from its row is no older than that."""
_HEAD = re.compile(rb'^\{"as_of_ms":\d+,(.*?"epoch":\d+,)"version":\d+,')
_AGE = re.compile(rb'"age_ms":(\d+)\.0')
_WINDOWS = b'"windows":['
_COUNTS = b",".join(b'"%s":%%d' % name.encode() for name in COUNTS)


class RowText:
    """The text of one row, while it holds. ``until_ms`` is when age alone makes it another."""

    __slots__ = ("_ages_at_ms", "_ages_before", "_pattern", "until_ms")

    def __init__(self, pattern: bytes, ages_at_ms: list[int], ages_before: int, until_ms: float) -> None:
        self._pattern = pattern
        self._ages_at_ms = ages_at_ms
        self._ages_before = ages_before
        self.until_ms = until_ms

    def filled(self, now_ms: int, version: int, counts: list[int]) -> bytes:
        """The row of this moment; ``counts`` are those of its windows, one after the other."""
        if not self._ages_at_ms:
            return self._pattern % (now_ms, version, *counts)
        ages = [now_ms - at_ms for at_ms in self._ages_at_ms]
        before = self._ages_before
        return self._pattern % (now_ms, version, *ages[:before], *counts, *ages[before:])


def row_text(row: Any, value: bytes, live: Live, now_ms: int) -> RowText | None:
    """The text of an instance row (struct of schemas.tables.InstanceRow) that was just made as ``value``.

    None where more than counts and ages may change by itself: signals, an instance in quarantine, or ages
    that are no whole milliseconds.
    """
    if live.has_signals or row.quarantined or not row.windows:
        return None
    head = _HEAD.match(value)
    begin = value.find(_WINDOWS)
    if head is None or begin < 0:
        return None
    windows = encode(row.windows)
    end = begin + len(_WINDOWS) - 1 + len(windows)
    before, ages_at_ms = _aged(value[head.end() : begin], now_ms)
    after, later = _aged(value[end:], now_ms)
    if before is None or after is None:
        return None
    pattern = b'{"as_of_ms":%%d,%b"version":%%d,%b%b[%b]%b' % (
        _escaped(head.group(1)),
        before,
        _WINDOWS[:-1],
        b",".join(_window(window) for window in row.windows),
        after,
    )
    ages_at_ms, count = ages_at_ms + later, len(ages_at_ms)
    return RowText(pattern, ages_at_ms, count, _holds_until_ms(ages_at_ms, now_ms))


def _window(window: Any) -> bytes:
    shapes = [(name, getattr(window, name)) for name in ("ttft_ms", "tpot_ms", "queue_ms")]
    known = [b',"%b":%b' % (name.encode(), encode(shape)) for name, shape in shapes if shape is not None]
    return b'{"span_ms":%b,%b%b}' % (encode(window.span_ms), _COUNTS, b"".join(known))


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
        age_ms = now_ms - at_ms
        if age_ms <= 0:
            return now_ms  # a clock ahead of ours: such an age does not grow
        until_ms = min(until_ms, at_ms + READING_VALID_MS * (1 if age_ms <= READING_VALID_MS else 2))
    return until_ms
