"""A row whose counts were put into its text is the row that its parts would make."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from minds.capacity.folds import State, Total
from minds.capacity.live import Live
from minds.capacity.registers import READING_VALID_MS, register_of
from minds.capacity.rows import Stamp, instance_row
from minds.capacity.signals import SignalsTotal
from minds.windows import COUNTS, Cell, Rings, add_slots
from schemas.endpoints import EndpointRow
from schemas.fastpath import decoder_of, encode
from schemas.readings import EngineGauges, Reading
from schemas.tables import InstanceRow
from schemas.telemetry import Telemetry
from streams.record_scan import Scan, header_section, scan_batch
from streams.record_writer import RecordWriter, WrittenBatch
from streams.row_text import AGED_FOR_MS, HOLDS_FOR_MS, RowText, numbers_of, row_text, told_by

T0 = 1_796_000_000_000
POOL = "m@v1"
READ = decoder_of(InstanceRow).decode


def endpoint(instance: str = "i-1") -> EndpointRow:
    return EndpointRow(
        as_of_ms=T0, valid_for_ms=5_000.0, epoch=1, version=1, instance=instance, boot="b0",
        boot_started_at_ms=T0 - 60_000, engine="vllm", url="http://127.0.0.1:1", region="eu", pools=[POOL],
    )  # fmt: skip


def live_with(attempts: int, *, sampled_ms: int | None = None, **total: Any) -> Live:
    rings = Rings({}, {})
    add_slots(rings, {T0 // 1000: Cell(attempts=attempts, ok=attempts, output_tokens=9)}, T0)
    if sampled_ms is not None:
        gauges = EngineGauges(requests_running=Reading(value=3.0, quality="fresh", age_ms=0.0))
        told = Telemetry(
            instance="i-1", boot="b0", boot_started_at_ms=T0 - 60_000, engine="vllm", region="eu",
            pools=[POOL], at_ms=sampled_ms, reachable=True, gauges=gauges,
        )  # fmt: skip
        total["ranks"] = {0: register_of(told)}
    return Live(State(closed=Total(mark_ms=T0, rings={"b0": rings}, **total)))


def filled_of(text: RowText, now_ms: int, version: int, counts: list[int]) -> bytes:
    """The value that a batch of this one row holds."""
    writer = RecordWriter(10_000)
    numbers = numbers_of(now_ms, version - 1, np.array([counts], np.int64))
    writer.add([b"i-1"], [text.template], [header_section([])], numbers)
    [batch] = writer.batches(now_ms)
    [(_, _, value)] = scan_of(batch).values()
    assert value is not None
    return value


def scan_of(batch: WrittenBatch) -> Scan:
    found = scan_batch(bytes(batch._build()), 0)
    assert found is not None
    return found


def counts_at(live: Live, now_ms: int) -> list[int]:
    return [count for window in live.counts(now_ms) for count in window]


def both(live: Live, later_ms: int, version: int = 9) -> tuple[Any, Any]:
    """The row by its text and by its parts, ``later_ms`` after the text was made."""
    row = instance_row(endpoint(), live, Stamp(T0, 7, 3))
    text = row_text(row, encode(row), live, POOL, T0)
    assert text is not None
    now = T0 + later_ms
    assert now <= text.until_ms
    filled = filled_of(text, now, version, counts_at(live, now))
    wanted = instance_row(endpoint(), live, Stamp(now, 7, version))
    return READ(filled), READ(encode(wanted))


@pytest.mark.parametrize("later_ms", [0, 100, 900])
@pytest.mark.parametrize("sampled_ms", [None, T0 - 1, T0 - 700])
def test_a_filled_row_is_the_row_of_that_moment(later_ms: int, sampled_ms: int | None) -> None:
    live = live_with(5, sampled_ms=sampled_ms)
    filled, wanted = both(live, later_ms)
    assert filled == wanted
    assert filled.windows[0].attempts == 5


def test_the_text_is_valid_json_of_its_model_and_leaves_out_what_is_0() -> None:
    live = live_with(5)
    row = instance_row(endpoint("i-1"), live, Stamp(T0, 7, 3))
    text = row_text(row, encode(row), live, POOL, T0)
    assert text is not None
    value = filled_of(text, T0 + 50, 4, counts_at(live, T0 + 50))
    InstanceRow.model_validate_json(value)
    told = json.loads(value)
    assert (told["as_of_ms"], told["version"], told["epoch"], told["pools"]) == (T0 + 50, 4, 7, [POOL])
    assert "timeout" not in told["windows"][0]
    assert len(value) <= len(encode(row))
    assert text.key == b"i-1"
    away = row_text(row, encode(row), live, "other@v1", T0)
    assert away is not None
    assert away.key is None


def test_what_a_text_does_not_tell_is_seen() -> None:
    live = live_with(5)
    row = instance_row(endpoint(), live, Stamp(T0, 7, 3))
    text = row_text(row, encode(row), live, POOL, T0)
    assert text is not None
    counts = np.zeros((2, 3 * len(COUNTS)), np.int64)
    counts[:, 0] = 6
    counts[1, len(COUNTS) + COUNTS.index("timeout")] = 1
    assert [bool(told & ~text.told) for told in told_by(counts).tolist()] == [False, True]


def test_ages_bound_how_long_a_text_holds() -> None:
    for sampled_ms, until_ms in (
        (T0 - 10, T0 + AGED_FOR_MS),
        (T0 - READING_VALID_MS + 200, T0 + 200),
        (T0 - 2 * READING_VALID_MS + 300, T0 + 300),
        (T0, T0),
    ):
        live = live_with(5, sampled_ms=int(sampled_ms))
        row = instance_row(endpoint(), live, Stamp(T0, 7, 3))
        text = row_text(row, encode(row), live, POOL, T0)
        assert text is not None
        assert text.until_ms == until_ms
    live = live_with(5)
    row = instance_row(endpoint(), live, Stamp(T0, 7, 3))
    text = row_text(row, encode(row), live, POOL, T0)
    assert text is not None
    assert text.until_ms == T0 + HOLDS_FOR_MS


def test_percentiles_are_told_anew_in_place() -> None:
    live = live_with(5)
    row = instance_row(endpoint(), live, Stamp(T0, 7, 3))
    text = row_text(row, encode(row), live, POOL, T0)
    assert text is not None
    assert READ(filled_of(text, T0 + 1, 4, counts_at(live, T0))).windows[0].ttft_ms is None
    live.shapes[0].ttft_ms = {"p50": 1.5, "p90": 2.0, "p95": 2.0, "p99": 3.0}
    text.tell_shapes(live.shapes)
    told = READ(filled_of(text, T0 + 1, 4, counts_at(live, T0)))
    assert (told.windows[0].ttft_ms.p50, told.windows[0].attempts) == (1.5, 5)
    assert told.windows[1].ttft_ms is None


def test_a_row_says_whether_only_news_can_change_it() -> None:
    for live, is_quiet in ((live_with(5), False), (live_with(0), True)):
        row = instance_row(endpoint(), live, Stamp(T0, 7, 3))
        text = row_text(row, encode(row), live, POOL, T0)
        assert text is not None
        assert text.is_quiet is is_quiet


def test_rows_that_change_by_themselves_have_no_text() -> None:
    row = instance_row(endpoint(), live_with(5), Stamp(T0, 7, 3))
    signalled = live_with(5, signals=SignalsTotal())
    assert row_text(row, encode(row), signalled, POOL, T0) is None
    wrong = msgspec.structs.replace(row, quarantined=True)
    assert row_text(wrong, encode(wrong), live_with(5), POOL, T0) is None
