"""Records to rows: what is refused and why, and what says nothing."""

from __future__ import annotations

from schemas.codec import headers_for, to_json
from schemas.grants import QuotaRow
from schemas.operations import CLAIM_KEY, Claim
from schemas.topics import OUTCOMES, QUOTAS
from sinks.clickhouse.tables import BY_TOPIC
from sinks.records import Batch
from tests.sinks.events import POOL, Record, envelope, outcome, row_record
from transport.clock import now_ms

NOW = now_ms()


def _batch(topic, records) -> Batch:  # type: ignore[no-untyped-def]
    batch = Batch()
    batch.add(BY_TOPIC[topic.name], records)
    return batch


def test_an_envelope_gives_a_row_an_event() -> None:
    events = [outcome("d1", "i1", at_ms=NOW), outcome("d2", "i2", at_ms=NOW)]
    batch = _batch(OUTCOMES, [envelope(OUTCOMES, events, offset=7, partition=2, seq=5)])
    rows = batch.rows["outcomes_raw"]
    assert [row.position for row in rows] == [(7, 0), (7, 1)]
    assert rows[1].values[:7] == ["fleet.outcomes", 2, 7, 1, "p1", "b1", 5]
    assert batch.next_offsets == {("fleet.outcomes", 2): 8}
    assert batch.good_records == 1
    assert not batch.bad


def test_a_single_event_has_no_envelope_identity() -> None:
    event = outcome("d1", "i1")
    (row,) = _batch(OUTCOMES, [Record(3, to_json(event), headers_for(event))]).rows["outcomes_raw"]
    assert row.values[4:7] == [None, None, None]


def test_bad_records_are_kept_with_their_reason_and_the_rest_goes_on() -> None:
    good = outcome("d1", "i1", at_ms=NOW)
    impossible = to_json(good).replace(b'"ok"', b'"splendid"')
    records = [
        Record(0, b"{not json", headers_for(good)),
        Record(1, to_json(good), [("schema", b"weather/9")]),
        Record(2, impossible, headers_for(good)),
        Record(3, None, headers_for(good)),
        envelope(OUTCOMES, [outcome("d2", "i2", at_ms=NOW + 3_600_000)], offset=4),
        envelope(OUTCOMES, [outcome("d3", "i3", at_ms=NOW - 30 * 3_600_000)], offset=5),
        envelope(OUTCOMES, [good], offset=6),
    ]
    batch = _batch(OUTCOMES, records)
    assert [(bad.offset, bad.refused.kind) for bad in batch.bad] == [
        (0, "unparseable"),
        (1, "unknown_schema"),
        (2, "impossible_value"),
        (3, "unparseable"),
        (4, "wrong_clock"),
        (5, "wrong_clock"),
    ]
    assert [row.offset for row in batch.rows["outcomes_raw"]] == [6]
    assert batch.next_offsets == {("fleet.outcomes", 0): 7}


def test_claims_and_tombstones_are_no_rows_and_old_rows_are_fine() -> None:
    claim = Claim(owner="streams-0", at_ms=NOW)
    row = QuotaRow(
        as_of_ms=NOW - 90 * 86_400_000,
        valid_for_ms=5000.0,
        epoch=1,
        version=1,
        region="eu",
        pool=POOL,
        cap_work_tokens=None,
        granted_work_tokens=0.0,
        exposed_work_tokens=0.0,
    )
    records = [
        Record(0, to_json(claim), headers_for(claim), key=CLAIM_KEY.encode()),
        Record(1, None, [("row-version", b"1/2")], key=b"eu|" + POOL.encode()),
        row_record(row, offset=2),
    ]
    batch = _batch(QUOTAS, records)
    assert [row.offset for row in batch.rows["quotas"]] == [2]
    assert not batch.bad
    assert batch.next_offsets == {("fleet.quotas", 0): 3}
