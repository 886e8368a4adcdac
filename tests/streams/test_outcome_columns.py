"""Outcomes as columns: names, times, offsets, and records that are odd as a whole."""

from __future__ import annotations

import json
import math

import pytest
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from minds.capacity.outcomes import FIELDS
from schemas.codec import Refused
from schemas.envelopes import MAX_EVENTS
from schemas.topics import OUTCOMES
from streams.outcome_columns import EVENT_FIELDS, OutcomeReader
from streams.record_batches import RecordBatch
from tests.streams.outcome_records import (
    AT_MS,
    BARE,
    PROJECTED,
    SINGLE,
    Headers,
    batch_of,
    envelope,
    read_all,
    single,
)


@pytest.mark.parametrize(
    "headers",
    [[], [("schema", None)], [("Schema", SINGLE[0][1])], [("schema", b"outcome/2")], [*SINGLE, *SINGLE],
     [*SINGLE, ("trace", b"x")], [("schema", b"gpu.batch/1")]],
)  # fmt: skip
def test_other_headers_are_odd(headers: Headers) -> None:
    read = read_all(batch_of(single(BARE), (headers, json.dumps(BARE).encode()), single(BARE)))
    assert (len(read), read.odd) == (2, [1])


def test_an_envelope_is_read_as_a_whole_or_not_at_all() -> None:
    events = [{**BARE, "instance": f"i{n}"} for n in range(50)]
    bad = {**BARE, "instance": 'quoted"'}
    reader = OutcomeReader()
    read = read_all(batch_of(envelope(*events, bad), envelope(*events), envelope(bad), envelope()), reader)
    assert (len(read), read.odd) == (50, [0, 2, 3])
    assert len(reader.names) == 50


def test_envelopes_hold_so_many_events_and_no_more() -> None:
    most, more = [BARE] * MAX_EVENTS, [BARE] * (MAX_EVENTS + 1)
    read = read_all(batch_of(*[envelope(*most)] * 6, envelope(*more)))
    assert (len(read), read.odd) == (6 * MAX_EVENTS, [6])


def test_names_are_unsound_where_a_key_may_not_have_them() -> None:
    unsound = [
        {**BARE, name: "a b@c"} for name in ("pool", "entry_region", "region", "instance", "instance_boot")
    ]
    fine = {**BARE, "region": "us"}
    read = read_all(batch_of(single(fine), *map(single, unsound), single({**fine, "entry_region": "a b"})))
    assert (len(read), read.odd) == (1, [1, 2, 3, 4, 5, 6])


def test_events_beyond_the_two_times_are_odd() -> None:
    batch = batch_of(*(single({**BARE, "at_ms": AT_MS + later}) for later in range(5)))
    reader = OutcomeReader()
    assert reader.read(batch, AT_MS + 0.5, AT_MS + 3.5, 0).odd == [0, 4]
    assert reader.read(batch, AT_MS + 1.0, AT_MS + 3.0, 0).at_ms.tolist() == [AT_MS + 1, AT_MS + 2, AT_MS + 3]
    assert reader.read(batch, -math.inf, AT_MS, 0).odd == [1, 2, 3, 4]
    assert len(reader.read(batch, math.nan, math.inf, 0)) == 0


def test_records_before_the_offset_are_left_out() -> None:
    batch = batch_of(*(single({**BARE, "output_tokens": n}) for n in range(4)), (SINGLE, None))
    read = OutcomeReader().read(batch, -math.inf, math.inf, 2)
    assert (read.output_tokens.tolist(), read.odd, read.records) == ([2, 3], [4], 3)


def test_a_batch_that_is_compressed_is_odd_from_the_offset_on() -> None:
    batch = batch_of(*[single(BARE)] * 4, compression=1)
    assert batch.raw is None
    read = OutcomeReader().read(batch, -math.inf, math.inf, 1)
    assert (len(read), read.odd, read.records) == (0, [1, 2, 3], 3)


def test_numbers_of_names_stay_until_they_are_forgotten() -> None:
    reader = OutcomeReader()
    many = [{**BARE, "instance": f"{n}" * 40, "region": "r" * (n % 150 + 1)} for n in range(3000)]
    batch = batch_of(*(envelope(*many[n : n + 500]) for n in range(0, 3000, 500)))
    first = read_all(batch, reader)
    assert first.name.tolist() == list(range(3000))
    held = reader.names
    assert read_all(batch, reader).name.tolist() == list(range(3000))
    assert reader.names is held
    reader.forget_names()
    assert reader.names == []
    assert len(held) == 3000
    assert read_all(batch_of(single(many[7])), reader).name.tolist() == [0]


def test_columns_are_not_changed_by_the_next_read() -> None:
    reader = OutcomeReader()
    first = reader.read(batch_of(single({**BARE, "output_tokens": 1})), -math.inf, math.inf, 0)
    reader.read(batch_of(single({**BARE, "output_tokens": 2})), -math.inf, math.inf, 0)
    assert first.output_tokens.tolist() == [1]


def test_all_that_the_fold_needs_is_read() -> None:
    assert set(EVENT_FIELDS) == set(FIELDS)


def test_names_of_the_same_hash_are_told_apart() -> None:
    def stirred(word: int) -> int:
        mixed = ((16 * 0x9E3779B97F4A7C15) ^ word) * 0x9E3779B97F4A7C15 % 2**64
        return mixed ^ (mixed >> 32)

    letters = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@/+-")
    target = stirred(int.from_bytes(b"modelone", "little")) ^ int.from_bytes(b"@version", "little")
    pools = ["modelone@version"]
    for number in range(1_000_000):
        start = b"m%06d@" % number
        end = (stirred(int.from_bytes(start, "little")) ^ target).to_bytes(8, "little")
        if letters.issuperset(end):
            pools.append((start + end).decode())
            break
    reader = OutcomeReader()
    read_all(batch_of(*(single({**BARE, "pool": pool}) for pool in pools * 2)), reader)
    assert [name[0] for name in reader.names] == pools
    table = reader._names
    assert len({table._spans[number, 0] for number in range(2)}) == len(pools) - 1 == 1


def test_a_header_whose_name_is_no_text_stops_nobody() -> None:
    """aiokafka can't read such a batch; its records are odd, have no schema, and so are put aside."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, 0, 1 << 20)
    good = single(BARE)
    for offset, (headers, value) in enumerate((good, ([("xy", b"1")], b"{}"), good)):
        builder.append(offset, timestamp=AT_MS, key=None, value=value, headers=headers)
    raw = bytes(builder.build()).replace(b"xy", b"\xff\xfe")
    batch = RecordBatch(TopicPartition(OUTCOMES.name, 0), DefaultRecordBatch(raw), 0, raw)
    read = OutcomeReader().read(batch, -math.inf, math.inf, 0)
    assert (len(read), read.odd) == (2, [1])
    odd = batch.records[1]
    assert (odd.offset, odd.timestamp, odd.value) == (1, AT_MS, b"{}")
    with pytest.raises(Refused, match="schema"):
        PROJECTED.events(odd.headers, odd.value)
