"""Stage one's fold without Kafka: offsets, clocks, and rollups that hold every key once."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

import pytest
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from minds.capacity.folds import Delta, State, add, instance_key, new_state, parse_key, value_of
from minds.capacity.partials import as_partials
from minds.merge import apply_rollup
from minds.windows import window_stats
from schemas.codec import Refused, decode_events, envelope_headers, headers_for, to_json
from schemas.envelopes import Envelope
from schemas.operations import Rollup
from schemas.outcomes import Outcome
from schemas.topics import OUTCOMES, ROLLUPS
from streams import interval
from streams.interval import ClockBounds, Outcomes, SourceInterval, rollup_partition, rollups_of, warm_up
from streams.record_batches import KeptRecords, RecordBatch
from streams.rollups import decode_partials
from tests.minds.capacity.outcome_columns import add_cells
from tests.streams.fleet import an_outcome
from transport.clock import now_ms

BOUNDS = ClockBounds(300_000.0, 86_400_000.0)


@dataclass
class Record:
    offset: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = tuple(envelope_headers(Outcome))
    timestamp: int = field(default_factory=now_ms)


def record(offset: int, outcomes: list[Outcome]) -> Record:
    envelope = Envelope[Outcome](producer="r", boot="b", seq=offset, sent_at_ms=now_ms(), events=outcomes)
    return Record(offset, to_json(envelope))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def source(partition: int = 0) -> SourceInterval:
    return SourceInterval(OUTCOMES.name, partition, 7, 10, 10, Outcomes())


def batch_of(*records: Record) -> RecordBatch:
    """As a broker would give it, from the first record's offset on."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    base = records[0].offset
    for each in records:
        headers = list(each.headers)
        builder.append(each.offset - base, each.timestamp, b"r", each.value, headers)
    raw = base.to_bytes(8, "big") + bytes(builder.build())[8:]
    kept = KeptRecords(raw)
    return RecordBatch(TopicPartition(OUTCOMES.name, 0), kept.next_batch(), base, kept.raw)


def take(mine: SourceInterval, *records: Record) -> tuple[int, list[Refused]]:
    events, refused = mine.take([batch_of(*records)], BOUNDS)
    return events, [reason for _, reason in refused]


def deltas_of(mine: SourceInterval) -> dict[str, Delta]:
    deltas = mine.deltas
    for cells in mine.cells.values():
        add_cells(deltas, cells)
    return deltas


def test_a_batch_that_was_read_in_part_goes_on_behind_that() -> None:
    mine = source()
    records = [record(offset, [an_outcome(f"d{offset}", "m@v1")]) for offset in (8, 9, 10, 11)]
    assert take(mine, *records) == (2, [])
    assert (mine.upto, deltas_of(mine)[instance_key("m@v1", "i-1")].mark_ms) == (12, records[-1].timestamp)


def test_what_is_odd_goes_the_slow_way_and_counts_as_well() -> None:
    mine = source()
    plain, odd = record(10, [an_outcome("d1", "m@v1")]), record(11, [an_outcome("d2", "m@v1")])
    assert odd.value is not None
    odd.value = odd.value.replace(b"{", b"{ \n", 1)
    gone = Record(12, b"{}")
    events, refused = take(mine, plain, odd, gone)
    assert (events, [reason.kind for reason in refused]) == (2, ["impossible_value"])
    cells = deltas_of(mine)[instance_key("m@v1", "i-1")].cells["b0"]
    assert sum(cell.attempts for cell in cells.values()) == 2


def test_names_are_forgotten_once_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "MOST_NAMES", 2)
    mine = source()
    for offset, names in ((10, ("a", "b", "c")), (11, ("c", "a"))):
        take(mine, record(offset, [an_outcome(f"d-{name}", "m@v1", instance=name) for name in names]))
        found = {key: delta for key, delta in deltas_of(mine).items() if key.startswith("i|")}
        assert set(found) == {instance_key("m@v1", name) for name in names}
        mine.next()
        mine.reading.forget_names()
    assert len(mine.reading.reader.names) == 2


def test_a_record_is_folded_once_and_moves_the_interval() -> None:
    mine = source()
    assert take(mine, record(9, [an_outcome("old", "m@v1")])) == (0, [])
    assert take(mine, record(12, [an_outcome(f"d{n}", "m@v1") for n in range(3)])) == (3, [])
    assert take(mine, record(12, [an_outcome("again", "m@v1")])) == (0, [])
    assert (mine.base, mine.upto) == (10, 13)
    mine.next()
    assert (mine.base, mine.upto, deltas_of(mine)) == (13, 13, {})


def test_a_refused_record_has_been_read_all_the_same() -> None:
    mine = source()
    _, refused = take(mine, Record(10, None))
    assert "no value" in refused[0].reason
    assert mine.upto == 11


@pytest.mark.parametrize(("off_ms", "side"), [(300_001, "ahead of"), (-86_400_001, "behind")])
def test_a_wrong_clock_is_refused_and_the_others_used(off_ms: int, side: str) -> None:
    mine = source()
    good, bad = an_outcome("d0", "m@v1"), an_outcome("d1", "m@v1")
    both = record(10, [bad.model_copy(update={"at_ms": bad.at_ms + off_ms}), good])
    both.timestamp = bad.at_ms
    _, refused = take(mine, both)
    assert side in refused[0].reason
    assert refused[0].kind == "wrong_clock"
    assert deltas_of(mine)[instance_key("m@v1", "i-1")].cells["b0"][good.at_ms // 1000].attempts == 1


@pytest.mark.parametrize("target", [200, 512 * 1024])
def test_rollups_hold_every_key_once_whatever_their_size(
    target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval, "TARGET_RECORD_BYTES", target)
    sources = [source(0), source(1)]
    pools = [f"m{n}@v1" for n in range(5)]
    for offset in range(10, 30):
        outcomes = [an_outcome(f"d{offset}", pool, instance=f"i{offset % 7}") for pool in pools]
        take(sources[offset % 2], record(offset, outcomes))
    states: dict[str, State] = {}
    records = list(rollups_of(sources, "c", now_ms()))
    assert (len(records) > 4) == (target == 200)
    assert sum(partials for _, _, partials in records) == 2 * 5 * (7 + 1)
    for offset, (partition, value, _) in enumerate(records):
        headers = tuple(headers_for(Rollup))
        for rollup in decode_events(ROLLUPS, headers, value).events:  # as the contract has it
            assert {(segment.generation, segment.base) for segment in rollup.segments} == {(7, 10)}
        _, grouped, cells = decode_partials(headers, value)
        for each in cells:
            as_partials(grouped, each)
        for key, parts in grouped.items():
            assert rollup_partition(parse_key(key).pool) == partition
            assert apply_rollup(states.setdefault(key, new_state()), offset, parts, add)
    for kind in ("i", "r"):
        attempts = [
            window_stats([rings for _, rings in value_of(state).rings], now_ms())[2].attempts
            for key, state in states.items()
            if parse_key(key).kind == kind
        ]
        assert sum(attempts) == 20 * 5


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("ends", b"\x09\0\0\0", "ends of its rows"),
        ("ends", b"", "as many as what they end"),
        ("boot_of", b"\x05\0\0\0", "a boot that it does not name"),
        ("counts", b"\xff" * 44, "less than nothing"),
        ("counts", b"", "not of one length"),
        ("sketch_ends", b"\x01\0\0\0" * 3, "ends of its sketches"),
    ],
)
def test_cells_that_are_none_are_refused(field: str, value: bytes, what: str) -> None:
    mine = source()
    take(mine, record(10, [an_outcome("d", "m@v1", instance=None, region="eu")]))
    ((_, wire, _),) = rollups_of([mine], "c", now_ms())
    rollup = json.loads(wire)
    rollup["segments"][0]["cells"][field] = base64.b64encode(value).decode()
    with pytest.raises(Refused, match=what) as refused:
        decode_partials(tuple(headers_for(Rollup)), json.dumps(rollup).encode())
    assert refused.value.kind == "impossible_value"
