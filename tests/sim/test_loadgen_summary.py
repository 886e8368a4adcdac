"""Figures against ledgers whose figures were worked out by hand, and the ledger file itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.loadgen.ledger import AttemptRecord, IntentRecord, Ledger, LedgerError, read_ledger
from sim.loadgen.retry import Cause
from sim.loadgen.summary import percentiles, summarise


def intent(name: str, cause: Cause | None = Cause.OK, **more: object) -> IntentRecord:
    fields: dict[str, object] = {
        "intent_id": name,
        "service_class": "interactive",
        "tenant": "t",
        "entry_region": "a",
        "residency": None,
        "input_tokens": 10,
        "output_tokens": 100,
        "at_ms": 0.0,
        "lag_ms": 1.0,
        "start_epoch_ms": 1_000.0,
        "finish_epoch_ms": 3_000.0,
        "ttft_slo_ms": 200.0,
        "tpot_slo_ms": 20.0,
        "cause": cause,
    }
    return IntentRecord(**{**fields, **more})  # type: ignore[arg-type]


def attempts(*regions: str | None) -> list[AttemptRecord]:
    return [
        AttemptRecord(attempt=number, router="http://r", start_epoch_ms=0.0, region=region)
        for number, region in enumerate(regions, 1)
    ]


LEDGER = [
    intent("good", ttft_ms=200.0, tpot_ms=20.0, tokens=100, attempts=attempts("b")),
    intent(
        "one-token", ttft_ms=50.0, output_tokens=1, tokens=1, attempts=attempts(None, "c"), wasted_tokens=30
    ),
    intent("slow-first", ttft_ms=201.0, tpot_ms=5.0, tokens=100, attempts=attempts("b")),
    intent(
        "slow-rest", ttft_ms=10.0, tpot_ms=21.0, tokens=100, finish_epoch_ms=11_000.0, attempts=attempts("b")
    ),
    intent("late", Cause.TIMEOUT, ttft_ms=10.0, tokens=40, attempts=attempts("c")),
    intent("left", Cause.CANCELLED, ttft_ms=60.0, tpot_ms=1.0, tokens=9, attempts=attempts("c")),
    intent("shed", Cause.SHED, service_class="batch", output_tokens=400, attempts=attempts(None, None, None)),
    intent("unreached", Cause.UNREACHED, service_class="batch", output_tokens=100),
]


def test_figures_by_hand() -> None:
    summary = summarise(LEDGER)
    assert (summary.offered, summary.ok, summary.duration_s, summary.retries) == (8, 4, 10.0, 3)
    one = summary.classes["interactive"]
    assert (one.offered, one.ok, one.within_slo) == (6, 4, 2)
    assert one.compliance_intents == pytest.approx(2 / 6)
    assert one.compliance_tokens == pytest.approx(101 / 501)
    assert one.good_output_share == pytest.approx(101 / (100 + 1 + 30 + 100 + 100 + 40 + 9))
    assert one.goodput_tokens_per_s == pytest.approx(10.1)
    assert one.output_tokens_per_s == pytest.approx(38.0)
    assert one.wasted_tokens == 30
    # 10 (slow-rest), 50, 60 (left by its client), 200, 201, infinite (late)
    assert (one.ttft_ms.count, one.ttft_ms.infinite) == (6, 1)
    assert (one.ttft_ms.p50, one.ttft_ms.p95, one.ttft_ms.p99) == (60.0, None, None)
    assert (one.tpot_ms.count, one.tpot_ms.p50, one.tpot_ms.p99) == (3, 20.0, 21.0)
    batch = summary.classes["batch"]
    assert (batch.offered, batch.ok, batch.compliance_intents, batch.compliance_tokens) == (2, 0, 0.0, 0.0)
    assert batch.good_output_share is None
    assert (batch.ttft_ms.p50, batch.ttft_ms.infinite, batch.tpot_ms.count) == (None, 2, 0)
    assert batch.causes == {"ok": 0, "timeout": 0, "cancelled": 0, "failed": 0, "shed": 1, "unreached": 1}
    assert {name: (r.ok, r.share, r.tokens) for name, r in summary.regions.items()} == {
        "b": (3, 0.75, 300),
        "c": (1, 0.25, 1),
    }


def test_the_summary_is_json_without_infinities() -> None:
    figures = json.loads(json.dumps(summarise(LEDGER, duration_s=20.0).to_dict(), allow_nan=False))
    assert figures["offered"] == 8
    assert figures["ok"] == 4
    assert figures["goodput_tokens_per_s"] == pytest.approx(5.05)
    assert figures["ttft_ms"]["p95"] is None
    assert figures["classes"]["interactive"]["offered"] == 6
    assert figures["regions"]["b"]["share"] == 0.75


def test_an_empty_ledger_knows_nothing() -> None:
    figures = summarise([]).to_dict()
    assert (figures["offered"], figures["duration_s"], figures["compliance_intents"]) == (0, None, None)
    assert figures["ttft_ms"] == {"count": 0, "infinite": 0, "p50": None, "p95": None, "p99": None}


def test_an_intent_in_the_books_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="more than once, first 'good'"):
        summarise([*LEDGER, LEDGER[0]])


@given(st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1))
def test_percentiles_are_values_that_occurred(values: list[float]) -> None:
    found = percentiles(values)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        at_or_below = sum(v <= (math.inf if value is None else value) for v in values)
        assert at_or_below * 100 >= percent * len(values)
        below = sum(v < (math.inf if value is None else value) for v in values)
        assert below * 100 < percent * len(values)


def test_the_file_holds_what_memory_holds(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    with Ledger(path, planned=9) as ledger:
        for record in LEDGER:
            ledger.opened(record)
        assert (ledger.live(5.0).in_flight, ledger.offered) == (8, 8)
        for record in LEDGER[:-1]:
            ledger.closed(record)
        view = ledger.live(7.0)
        assert read_ledger(path) == LEDGER[:-1]  # each line is out as soon as its intent is closed
    assert (view.planned, view.offered, view.in_flight, view.retries, view.tokens) == (9, 8, 1, 3, 380)
    assert view.finished == {"ok": 4, "timeout": 1, "cancelled": 1, "shed": 1}
    assert view.within_slo_by_class["interactive"] == 2
    assert view.offered_by_class == {"interactive": 6, "batch": 2}


def test_the_books_of_two_runs_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, planned=1) as ledger:
        ledger.closed(LEDGER[0])
    with pytest.raises(LedgerError, match="already holds records"):
        Ledger(path, planned=1)
    with pytest.raises(LedgerError, match="can't be opened"):
        Ledger(tmp_path, planned=1)
    path.write_bytes(path.read_bytes() + b'{"intent_id": 3}\n')
    with pytest.raises(LedgerError, match="Line 2 of the ledger"):
        read_ledger(path)
    with pytest.raises(LedgerError, match="can't be read"):
        read_ledger(tmp_path / "absent")


def test_a_write_that_fails_is_counted_and_the_record_kept(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", planned=2) as ledger:
        ledger._file.close()
        ledger.closed(LEDGER[0])
        ledger.closed(LEDGER[1])
        assert (ledger.write_errors, len(ledger.records)) == (2, 2)
