"""Names as numbers: compiled code gives each tuple of four texts a number, and Python its strings.

An open-addressing hash table over the texts' bytes. Compiled code can't make it larger: it says that there is
no room, and is called again from where it stopped once there is.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from minds.capacity.columns import Name
from schemas.base import NAME_PATTERN
from streams.raw_memory import byte_at, compiled, put_byte, put_word, word_at

PARTS = 4
_USED, _BYTES, _TABLE, _MASK, _SPANS, _SPANS_ROOM, _ARENA, _ARENA_ROOM, _SOUND = range(9)
"""Words of the state: names and their bytes in use; where table, spans and bytes lie and how much fits; and
which characters a name may have, a byte each."""
_SPAN_WORDS = 2 + PARTS
"""A name's hash, where it starts among the bytes, and the lengths of its parts."""
_FIRST_ROOM = 1024
_NAME_BYTES = 32
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(8)], np.int64)
_HALF = 2**32 - 1
_FACTOR = -0x61C8864680B583EB  # 2**64 divided by the golden ratio: Knuth's multiplicative hash


class NameTable:
    """The names so far. ``state`` is for compiled code, which finds all else from there."""

    def __init__(self) -> None:
        self.names: list[Name] = []
        name = re.compile(NAME_PATTERN)
        sound = [code < 0x80 and name.match(chr(code)) is not None for code in range(256)]
        self._sound = np.array(sound, np.uint8)
        self.state = np.zeros(9, np.int64)
        self._spans = np.empty((_FIRST_ROOM, _SPAN_WORDS), np.int64)
        self._arena = np.empty(_FIRST_ROOM * _NAME_BYTES, np.uint8)
        self._place()

    def forget(self) -> None:
        """Start anew, with another list; numbers given earlier count in the old one."""
        self.names = []
        self._table.fill(-1)
        self.state[[_USED, _BYTES]] = 0

    def grow(self) -> None:
        """Make room for twice as many."""
        used, size = int(self.state[_USED]), int(self.state[_BYTES])
        spans = np.empty((2 * len(self._spans), _SPAN_WORDS), np.int64)
        arena = np.empty(2 * len(self._arena), np.uint8)
        spans[:used], arena[:size] = self._spans[:used], self._arena[:size]
        self._spans, self._arena = spans, arena
        self._place()

    def note(self) -> None:
        """Turn what is new into strings."""
        for number in range(len(self.names), int(self.state[_USED])):
            _, at, *lengths = self._spans[number].tolist()
            parts: list[str] = []
            for length in lengths:
                parts.append(self._arena[at : at + length].tobytes().decode("ascii"))
                at += length
            pool, instance, boot, region = parts
            self.names.append((pool, instance or None, boot or None, region))

    def _place(self) -> None:
        self._table = np.full(2 * len(self._spans), -1, np.int64)
        place_names(self._spans, int(self.state[_USED]), self._table)
        arrays = (self._table, self._spans, self._arena, self._sound)
        table, spans, arena, sound = (array.ctypes.data for array in arrays)
        room, arena_room = len(self._spans), len(self._arena)
        self.state[_TABLE:] = table, len(self._table) - 1, spans, room, arena, arena_room, sound


@compiled(cache=True, nogil=True)
def place_names(spans: Any, names: int, table: Any) -> None:
    """Fill an empty table, a power of two long and -1 throughout, with the names that there are."""
    mask = len(table) - 1
    for number in range(names):
        place = spans[number, 0] & mask
        while table[place] >= 0:
            place = (place + 1) & mask
        table[place] = number


@compiled(forceinline=True)
def _mix(mixed: Any, at: Any, size: Any) -> Any:
    mixed = (mixed ^ size) * _FACTOR
    while size > 0:
        word = word_at(at)
        if size < 8:
            word &= _MASKS[size]
        mixed = (mixed ^ word) * _FACTOR
        mixed ^= (mixed >> 32) & _HALF
        at += 8
        size -= 8
    return mixed


@compiled()
def same(at: Any, other: Any, size: Any) -> Any:
    """Whether so many bytes are the same at two addresses."""
    while size >= 8:
        if word_at(at) != word_at(other):
            return False
        at += 8
        other += 8
        size -= 8
    for step in range(size):  # noqa: SIM110 - compiled code has no all()
        if byte_at(at + step) != byte_at(other + step):
            return False
    return True


@compiled()
def sound(at: Any, size: Any, state: Any) -> Any:
    """Whether the text holds only characters that names may have."""
    table = word_at(state + 8 * _SOUND)
    for step in range(size):  # noqa: SIM110
        if byte_at(table + byte_at(at + step)) == 0:
            return False
    return True


@compiled()
def intern(parts: Any, step: Any, state: Any) -> Any:
    """The number of four texts; -1 where one is unsound, -2 where there is no room for them.

    At ``parts`` are two words, the first text's address and length, and ``step`` bytes on those of the next.
    Seven bytes beyond each text must be readable.
    """
    mixed = size = 0
    stop = parts + PARTS * step
    for part in range(parts, stop, step):
        length = word_at(part + 8)
        mixed = _mix(mixed, word_at(part), length)
        size += length
    table, mask = word_at(state + 8 * _TABLE), word_at(state + 8 * _MASK)
    spans, arena = word_at(state + 8 * _SPANS), word_at(state + 8 * _ARENA)
    place = mixed & mask
    number = word_at(table + 8 * place)
    while number >= 0:
        span = spans + 8 * _SPAN_WORDS * number
        if word_at(span) == mixed:
            there, alike = arena + word_at(span + 8), True
            for part in range(parts, stop, step):
                span += 8
                length = word_at(span + 8)
                if length != word_at(part + 8) or not same(word_at(part), there, length):
                    alike = False
                    break
                there += length
            if alike:
                return number
        place = (place + 1) & mask
        number = word_at(table + 8 * place)
    number, used = word_at(state + 8 * _USED), word_at(state + 8 * _BYTES)
    for part in range(parts, stop, step):
        if not sound(word_at(part), word_at(part + 8), state):
            return -1
    if number >= word_at(state + 8 * _SPANS_ROOM) or used + size > word_at(state + 8 * _ARENA_ROOM):
        return -2
    span = spans + 8 * _SPAN_WORDS * number
    put_word(span, mixed)
    put_word(span + 8, used)
    for part in range(parts, stop, step):
        span += 8
        length = word_at(part + 8)
        put_word(span + 8, length)
        for at in range(length):
            put_byte(arena + used + at, byte_at(word_at(part) + at))
        used += length
    put_word(table + 8 * place, number)
    put_word(state + 8 * _USED, number + 1)
    put_word(state + 8 * _BYTES, used)
    return number
