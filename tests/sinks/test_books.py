"""The comparison of ledger, log and store."""

from __future__ import annotations

from schemas.codec import to_json
from schemas.topics import OUTCOMES
from sinks.books import (
    DecisionBook,
    LogBooks,
    SideBooks,
    _count_decision,
    _count_outcome,
    _count_record,
    reconcile,
    stored_books,
)
from tests.sinks.conftest import Put
from tests.sinks.events import decision, envelope, outcome
from transport.clock import now_ms


def _side(**decisions: DecisionBook) -> SideBooks:
    return SideBooks(dict(decisions))


def _ok(intent: str, **changes: object) -> DecisionBook:
    return DecisionBook(intent, **{"outcomes": 1, "cause": "ok", **changes})  # type: ignore[arg-type]


def test_books_that_agree() -> None:
    both = {"d1": _ok("i1"), "d2": _ok("i2", cause="shed")}
    books = reconcile({"i1", "i2"}, _side(**both), _side(**both))
    assert books.agree
    assert (books.intents, books.produced, books.stored, books.examples) == (2, 2, 2, {})


def test_each_way_to_disagree() -> None:
    log = _side(d1=_ok("i1"), d2=_ok("i2", outcomes=2), d9=_ok("i9"))
    stored = _side(d1=_ok("i1"), d2=_ok("i2"), d8=_ok("i1"))
    books = reconcile(["i1", "i2", "i3"], log, stored)
    assert not books.agree
    assert (books.produced, books.stored) == (2, 2)
    assert books.missing == 2, "i3 is not in the log, d9 not in the store"
    assert books.duplicates == 1
    assert books.unexpected == 2, "i9 is not in the ledger, d8 only in the store"
    assert books.examples["intents_not_logged"] == ["i3"]
    assert books.to_dict()["agree"] is False


def test_a_real_outcome_after_an_inferred_one_is_a_correction() -> None:
    corrected = DecisionBook("i1", outcomes=1, inferred_lost=1, cause="ok")
    lost = DecisionBook("i2", inferred_lost=1, cause="lost")
    twice_lost = DecisionBook("i3", inferred_lost=2, cause="lost")
    side = _side(d1=corrected, d2=lost, d3=twice_lost)
    books = reconcile(["i1", "i2", "i3"], side, side)
    assert (books.corrected, books.duplicates, books.lost) == (1, 1, 2)


def test_an_intent_is_lost_only_if_it_ends_so() -> None:
    side = _side(
        a=DecisionBook("i1", inferred_lost=1, cause="lost", attempt=1),
        b=_ok("i1", attempt=2),
        c=_ok("i2", cause="failed", attempt=1),
        d=DecisionBook("i2", inferred_lost=1, cause="lost", attempt=2),
    )
    assert side.causes() == {"i1": "ok", "i2": "lost"}


def test_the_logs_reader_counts_envelopes_singles_and_junk() -> None:
    books = LogBooks()
    first = outcome("d1", "i1", cause="lost", inferred=True, within_slo=False)
    for value in (
        envelope(OUTCOMES, [first, outcome("d2", "i2")], offset=0).value,
        to_json(outcome("d1", "i1")),
        to_json(first),
        b"{",
        b"[]",
        b'{"events": [{}]}',
        None,
    ):
        _count_record(books, value, _count_outcome)
    assert (books.records, books.events, books.unreadable) == (7, 4, 4)
    assert books.decisions["d1"] == DecisionBook("i1", 1, 2, "ok", 1)
    assert books.duplicates == {"d1": 1}
    _count_record(books, to_json(decision("d5", "i5")), _count_decision)
    _count_record(books, to_json(decision("d6", "i6", verdict="shed")), _count_decision)
    assert books.dispatched == {"d5": "i5"}


async def test_the_stores_side_comes_in_pages(put: Put, endpoint: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    began = now_ms()
    old = outcome("old", "i0", at_ms=began - 60_000)
    lost = outcome("d1", "i1", cause="lost", inferred=True, within_slo=False)
    events = [old, lost, outcome("d1", "i1", attempt=1), *(outcome(f"e{n}", f"j{n}") for n in range(5))]
    await put(OUTCOMES, [envelope(OUTCOMES, events, offset=0)])
    monkeypatch.setattr("sinks.books._PAGE", 2)
    books = await stored_books(endpoint, from_ms=began)
    assert books.decisions["d1"] == DecisionBook("i1", 1, 1, "ok", 1)
    assert sorted(books.decisions) == ["d1", "e0", "e1", "e2", "e3", "e4"]
