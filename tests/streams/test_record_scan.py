"""The scan of a batch's bytes finds what aiokafka's reader finds, and never more than there is."""

from __future__ import annotations

import struct

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.record_scan import (
    END,
    HEADERS_START,
    OFFSET,
    TIMESTAMP_MS,
    VALUE_LENGTH,
    VALUE_START,
    Scan,
    header_section,
    scan_batch,
)

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
SCHEMA = ("schema", b"outcome/1")

headers = st.lists(
    st.one_of(st.just(SCHEMA), st.tuples(st.text(max_size=200), st.none() | st.binary(max_size=5))),
    max_size=3,
)
values = st.none() | st.binary(max_size=300)
records = st.lists(
    st.tuples(st.integers(1, 2**20), st.integers(-(2**40), 2**40), values, values, headers), max_size=8
)


def build(given_records: list[Record], base: int = 0, created_ms: int = 1_700_000_000_000) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, 0, 1 << 22)
    offset = 0
    for gap, later_ms, key, value, told in given_records:
        builder.append(offset, timestamp=created_ms + later_ms, key=key, value=value, headers=told)
        offset += gap
    data = bytearray(builder.build())
    data[:8] = struct.pack(">q", base)  # as the broker does; no part of the checksum
    return bytes(data)


def values_of(scan: Scan) -> list[bytes | None]:
    data, found = scan.data.tobytes(), []
    for row in scan.table.tolist():
        start, length = row[VALUE_START], row[VALUE_LENGTH]
        found.append(None if length < 0 else data[start : start + length])
    return found


@settings(deadline=None)
@given(records, st.integers(0, 2**40), st.integers(0, 2**21))
def test_the_same_records_as_the_client_finds(told: list[Record], base: int, skip: int) -> None:
    raw = build(told, base)
    scan = scan_batch(raw, base + skip)
    expected = [record for record in DefaultRecordBatch(raw) if record.offset >= base + skip]
    assert scan is not None
    assert len(scan) == len(expected)
    assert scan.table[:, OFFSET].tolist() == [record.offset for record in expected]
    assert scan.table[:, TIMESTAMP_MS].tolist() == [record.timestamp for record in expected]
    assert values_of(scan) == [record.value for record in expected]
    if expected:
        stamps = [record.timestamp for record in expected]
        assert (scan.first_ms, scan.last_ms) == (min(stamps), max(stamps))
    alone = header_section([SCHEMA])
    for row, record in zip(scan.table.tolist(), expected, strict=True):
        section = raw[row[HEADERS_START] : row[END]]
        assert (section == alone) == (record.headers == [SCHEMA])


def test_the_broker_s_time_stamp_counts_for_all_records() -> None:
    raw = bytearray(build([(1, later_ms, None, b"x", []) for later_ms in (5, -3, 9)]))
    raw[22] |= 0x08
    scan = scan_batch(bytes(raw), 0)
    assert scan is not None
    assert set(scan.table[:, TIMESTAMP_MS].tolist()) == {1_700_000_000_009}
    assert (scan.first_ms, scan.last_ms) == (1_700_000_000_009,) * 2


def test_long_header_values_have_long_lengths() -> None:
    header = ("schema", b"v" * 300)
    raw = build([(1, 0, None, b"x", [header])])
    scan = scan_batch(raw, 0)
    assert scan is not None
    assert raw[scan.table[0, HEADERS_START] :] == header_section([header])


@settings(deadline=None)
@given(records, st.data())
def test_garbled_bytes_are_refused_or_read_as_the_client_reads_them(
    told: list[Record], data: st.DataObject
) -> None:
    raw = bytearray(build(told))
    places = st.integers(23, len(raw) - 1)  # behind length, magic and attributes
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(places)] = data.draw(st.integers(0, 255))
    garbled = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    scan = scan_batch(garbled, -(2**62))
    if scan is None:
        return
    for row in scan.table.tolist():
        assert 61 <= row[VALUE_START] <= row[HEADERS_START] <= row[END] <= len(garbled)
        assert row[HEADERS_START] == row[VALUE_START] + max(row[VALUE_LENGTH], 0)
    try:
        expected = list(DefaultRecordBatch(garbled))
    except (CorruptRecordException, UnicodeDecodeError, ValueError):
        return  # headers, which the scan leaves to who wants them
    assert values_of(scan) == [record.value for record in expected]
    assert scan.table[:, OFFSET].tolist() == [record.offset for record in expected]
    assert scan.table[:, TIMESTAMP_MS].tolist() == [record.timestamp for record in expected]


@pytest.mark.parametrize("size", [0, 60, 61, 62, 70])
def test_a_batch_cut_short_is_refused(size: int) -> None:
    raw = build([(1, 0, b"key", b"value", [SCHEMA])])
    assert scan_batch(raw[:size], 0) is None
    assert scan_batch(raw, 0) is not None
