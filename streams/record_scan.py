"""Where the records of a batch lie in its bytes, found by compiled code without an object for each.

The layout is Kafka's record batch of magic 2 (https://kafka.apache.org/documentation/#recordbatch): a head of
61 bytes, then records whose lengths and deltas are zigzag varints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streams.raw_memory import compiled

HEAD_BYTES = 61
LENGTH_AT = 8
"""Where a batch of any magic says how many bytes follow its length, in four bytes."""
CRC_AT, CRC_FROM = 17, 21
"""Where a batch says its checksum, and from where on it is reckoned."""
VALUE_START, VALUE_LENGTH, OFFSET, TIMESTAMP_MS, HEADERS_START, END = range(6)
"""The columns of ``Scan.table``."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Records of one batch in order: where each lies in ``data``, and when.

    ``table`` is int64 of shape (records, 6), its columns by the names above. ``VALUE_LENGTH`` is -1 for a
    value of null. Between ``HEADERS_START`` and ``END`` are the record's headers, which nobody checked.
    ``first_ms`` and ``last_ms`` are the earliest and the latest time stamp; 0 where there are no records.
    """

    data: NDArray[np.uint8]
    table: NDArray[np.int64]
    first_ms: int
    last_ms: int

    def __len__(self) -> int:
        return int(self.table.shape[0])

    def values(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Offset, time stamp and value of each record."""
        for start, length, offset, at_ms, _, _ in self.table.tolist():
            yield offset, at_ms, None if length < 0 else self.data[start : start + length].tobytes()


def scan_batch(raw: bytes | memoryview, wanted: int) -> Scan | None:
    """The records from offset ``wanted`` on of an uncompressed batch of magic 2, with its head.

    None where the bytes are not what its head says; they are then for a slower reader to judge.
    """
    data: NDArray[np.uint8] = np.frombuffer(raw, np.uint8)
    if len(data) < HEAD_BYTES:
        return None
    count = int.from_bytes(raw[57:61], "big", signed=True)
    # A record takes 7 bytes at least: a count that could not be true must not claim memory.
    if not 0 <= count <= (len(data) - HEAD_BYTES) // 7:
        return None
    table = np.empty((count, 6), np.int64)
    taken, first_ms, last_ms = _scan(data, count, wanted, table)
    if taken < 0:
        return None
    return Scan(data, table[:taken], first_ms, last_ms)


def header_section(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """The bytes of a record's headers, as producers write them."""
    parts = [_varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        parts += [_varint(len(key)), key, _varint(len(value)), value]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    left, out = number << 1, bytearray()  # zigzag of what is not negative
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


@compiled(forceinline=True)
def _read_varint(data: Any, at: int, end: int) -> Any:
    """``(next, number)``; next is -1 where the varint does not end within 10 bytes or before ``end``."""
    raw = np.int64(0)
    for step in range(10):
        if at >= end:
            break
        byte = np.int64(data[at])
        at += 1
        raw |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            # Zigzag; the arithmetic shift's copies of the sign are not part of the number.
            return at, ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1)
    return -1, np.int64(0)


@compiled(forceinline=True)
def _big_endian(data: Any, at: int, size: int) -> Any:
    number = np.int64(0)
    for step in range(size):
        number = (number << 8) | np.int64(data[at + step])
    return number


@compiled(cache=True, nogil=True)
def _scan(data: Any, count: int, wanted: int, table: Any) -> Any:
    """Fill the table; ``(records, first_ms, last_ms)``, the first -1 where the bytes can't be right."""
    size = len(data)
    base = _big_endian(data, 0, 8)
    stamped_by_broker = data[22] & 0x08 != 0
    created_ms = _big_endian(data, 27, 8)
    appended_ms = _big_endian(data, 35, 8)
    first_ms = last_ms = np.int64(0)
    taken = 0
    at = HEAD_BYTES
    for _ in range(count):
        at, length = _read_varint(data, at, size)
        if at < 0 or length < 1 or length > size - at:
            return -1, first_ms, last_ms
        end = at + length
        if data[at] != 0:  # attributes, none of which is in use
            return -1, first_ms, last_ms
        at, later_ms = _read_varint(data, at + 1, end)
        if at < 0:
            return -1, first_ms, last_ms
        at, step = _read_varint(data, at, end)
        if at < 0 or step < 0 or step > 0x7FFFFFFF:
            return -1, first_ms, last_ms
        at, length = _read_varint(data, at, end)
        if at < 0 or length < -1 or length > end - at:
            return -1, first_ms, last_ms
        if length > 0:
            at += length
        at, length = _read_varint(data, at, end)
        if at < 0 or length < -1 or length > end - at:
            return -1, first_ms, last_ms
        start = at
        if length > 0:
            at += length
        if base + step >= wanted:
            stamp_ms = appended_ms if stamped_by_broker else created_ms + later_ms
            if taken == 0:
                first_ms = last_ms = stamp_ms
            elif stamp_ms < first_ms:
                first_ms = stamp_ms
            elif stamp_ms > last_ms:
                last_ms = stamp_ms
            table[taken, VALUE_START] = start
            table[taken, VALUE_LENGTH] = length
            table[taken, OFFSET] = base + step
            table[taken, TIMESTAMP_MS] = stamp_ms
            table[taken, HEADERS_START] = at
            table[taken, END] = end
            taken += 1
        at = end
    if at != size:
        return -1, first_ms, last_ms
    return taken, first_ms, last_ms
