"""Records written as a broker's batch by compiled code, which puts numbers into their values.

A row that only counts have changed is its last text with new numbers. By ``%`` and aiokafka's builder that is
6 us a row of 900 bytes; here 1 us, the record's frame included. The layout is Kafka's record batch of
magic 2 (https://kafka.apache.org/documentation/#recordbatch).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from aiokafka.producer.message_accumulator import BatchBuilder
from crc32c import crc32c
from numpy.typing import NDArray

from schemas.topics import MAX_RECORD_BYTES
from streams.raw_memory import byte_at, compiled, put_byte, put_word, word_at
from streams.record_scan import CRC_AT, CRC_FROM, HEAD_BYTES, LENGTH_AT

NOTHING, NUMBER, AGE = range(3)
"""What follows a piece of text: nothing, the row's number of that column, or its first number less this."""
_HEAD = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_LENGTH_FROM = LENGTH_AT + 4
_MAGIC = 2
_AFTER_TEXT = struct.Struct("<Bq")
_LENGTH = struct.Struct("<i")
_AFTER_BYTES = _AFTER_TEXT.size
_WORD_BYTES = 8
_MOST_VARINT = 10
_PADDING = bytes(_WORD_BYTES)


def piece(text: bytes, kind: int = NOTHING, what: int = 0) -> bytes:
    """A part of a template: text, and the number after it. A template is pieces joined; an empty one is a
    value of null."""
    return _LENGTH.pack(len(text)) + text + _AFTER_TEXT.pack(kind, what)


class WrittenBatch(BatchBuilder):  # type: ignore[misc]
    """A batch whose records are in their wire form already, as ``send_batch`` takes it.

    It is closed from the start, so that the producer does not wait for more of it. It needs what aiokafka
    does with a builder (aiokafka==0.14.0), which ``tests/streams/test_record_writer.py`` holds it to.
    """

    def __init__(self, buffer: bytearray, count: int, stamp_ms: int) -> None:
        """``buffer`` has HEAD_BYTES for the head, then the records."""
        self._buffer = buffer
        self._count = count
        self._stamp_ms = stamp_ms
        self._producer = (-1, -1, 0)
        self._has_head = False
        self._closed = True

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytearray:
        if not self._has_head:
            buffer, stamp_ms = self._buffer, self._stamp_ms
            head = (0, len(buffer) - _LENGTH_FROM, -1, _MAGIC, 0, 0, self._count - 1, stamp_ms, stamp_ms)
            _HEAD.pack_into(buffer, 0, *head, *self._producer, self._count)
            _CRC.pack_into(buffer, CRC_AT, crc32c(memoryview(buffer)[CRC_FROM:]))
            self._has_head = True
        return self._buffer

    def size(self) -> int:
        """In bytes."""
        return len(self._buffer)

    def record_count(self) -> int:
        """How many records it holds."""
        return self._count


class RecordWriter:
    """Writes records into batches of at most ``most_bytes`` each, but for a record that is longer alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._room = np.empty(MAX_RECORD_BYTES, np.uint8)
        self._used, self._count = HEAD_BYTES, 0
        self._full: list[tuple[bytearray, int]] = []

    def add(
        self,
        keys: Sequence[bytes],
        templates: Sequence[bytes],
        headers: Sequence[bytes],
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        """Add records: key, template and header section (record_scan.header_section) of each.

        ``numbers`` is int64 of shape (records, columns): what the templates' places take; the first column
        is the time that ages are reckoned at. ValueError for a record that is larger than one may be.
        """
        held = np.zeros((len(keys), 1), np.int64) if numbers is None else np.ascontiguousarray(numbers)
        joined = [_joined(part) for part in (keys, templates, headers)]
        row = 0
        while row < len(keys):
            taken, self._used = _write(
                *chain(*joined), held, row, self._room, self._used, self._count, self._most_bytes
            )
            row, self._count = row + taken, self._count + taken
            if row < len(keys):
                if not self._count:
                    raise ValueError(f"The record {keys[row]!r} is larger than a record may be.")
                self._end()

    def batches(self, stamp_ms: int) -> list[WrittenBatch]:
        """All that was added, in order, as of that time; the writer is empty then."""
        if self._count:
            self._end()
        full, self._full = self._full, []
        return [WrittenBatch(buffer, count, stamp_ms) for buffer, count in full]

    def _end(self) -> None:
        self._full.append((bytearray(self._room[: self._used].data), self._count))
        self._used, self._count = HEAD_BYTES, 0


def _joined(parts: Sequence[bytes]) -> tuple[Any, NDArray[np.int64]]:
    """The parts one after the other, and where each ends. Eight bytes more, since words are read."""
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    return np.frombuffer(b"".join([*parts, _PADDING]), np.uint8), ends


@compiled(forceinline=True)
def _varint_bytes(number: int) -> int:
    """How long the zigzag varint of what is not negative is."""
    left, size = number << 1, 1
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


@compiled(forceinline=True)
def _put_varint(at: int, number: int) -> int:
    left = number << 1
    while left > 0x7F:
        put_byte(at, left & 0x7F | 0x80)
        left >>= 7
        at += 1
    put_byte(at, left)
    return at + 1


@compiled(forceinline=True)
def _digits(number: int) -> int:
    left, size = np.uint64(abs(number)), 1
    while left > np.uint64(9):
        left //= np.uint64(10)
        size += 1
    return size + (number < 0)


@compiled(forceinline=True)
def _put_number(at: int, number: int) -> int:
    size: int = _digits(number)
    left, place = np.uint64(abs(number)), at + size - 1
    if number < 0:
        put_byte(at, 45)
    while left > np.uint64(9):
        rest = left // np.uint64(10)
        put_byte(place, 48 + np.int64(left - rest * np.uint64(10)))
        left = rest
        place -= 1
    put_byte(place, 48 + np.int64(left))
    return at + size


@compiled(forceinline=True)
def _number(place: int, row: int) -> int:
    """The number after a piece of text: ``row`` is where the row's numbers are."""
    what: int = word_at(place + 1)
    number: int = word_at(row + 8 * what) if byte_at(place) == NUMBER else word_at(row) - what
    return number


@compiled(forceinline=True)
def _copy(begin: int, end: int, at: int) -> int:
    """Copy by words: up to seven bytes beyond the end are read, and written."""
    for step in range(0, end - begin, 8):
        put_word(at + step, word_at(begin + step))
    return at + end - begin


@compiled(cache=True, nogil=True)
def _write(
    keys: Any,
    key_ends: Any,
    templates: Any,
    template_ends: Any,
    headers: Any,
    header_ends: Any,
    numbers: Any,
    first: int,
    out: Any,
    used: int,
    offset: int,
    most: int,
) -> Any:
    """Write records from ``first`` on while they fit: how many, and how much of ``out`` is used then.

    The first record of a batch (``offset`` 0) may be longer than ``most``.
    """
    key_data, template_data = np.int64(keys.ctypes.data), np.int64(templates.ctypes.data)
    header_data, row_data = np.int64(headers.ctypes.data), np.int64(numbers.ctypes.data)
    start, width = np.int64(out.ctypes.data), 8 * numbers.shape[1]
    room, at = start + len(out) - _WORD_BYTES, start + used
    for row in range(first, len(key_ends)):
        key_from = key_data + (key_ends[row - 1] if row else 0)
        key_bytes = key_data + key_ends[row] - key_from
        begin = template_data + (template_ends[row - 1] if row else 0)
        end = template_data + template_ends[row]
        header_from = header_data + (header_ends[row - 1] if row else 0)
        header_to = header_data + header_ends[row]
        figures = row_data + row * width
        length, place = 0, begin
        while place < end:
            size = word_at(place) & 0xFFFFFFFF
            length += size
            place += 4 + size
            if byte_at(place) != NOTHING:
                length += _digits(_number(place, figures))
            place += _AFTER_BYTES
        body = 2 + _varint_bytes(offset) + _varint_bytes(key_bytes) + key_bytes
        body += (_varint_bytes(length) if end > begin else 1) + length + header_to - header_from
        if at + body + _MOST_VARINT > (start + most if offset else room):
            return row - first, at - start
        at = _put_varint(at, body)
        put_byte(at, 0)  # no attributes
        put_byte(at + 1, 0)  # the time stamp is the batch's
        at = _put_varint(at + 2, offset)
        at = _put_varint(at, key_bytes)
        at = _copy(key_from, key_from + key_bytes, at)
        if end > begin:
            at = _put_varint(at, length)
        else:
            put_byte(at, 1)  # -1: null
            at += 1
        place = begin
        while place < end:
            size = word_at(place) & 0xFFFFFFFF
            place += 4
            at = _copy(place, place + size, at)
            place += size
            if byte_at(place) != NOTHING:
                at = _put_number(at, _number(place, figures))
            place += _AFTER_BYTES
        at = _copy(header_from, header_to, at)
        offset += 1
    return len(key_ends) - first, at - start


def warm_up() -> None:
    """Compile, or load what was compiled before: seconds the first time."""
    RecordWriter(1024).add([b"k"], [piece(b"v", NUMBER, 0)], [b""])
