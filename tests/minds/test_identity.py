"""Intents and attempts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from minds.identity import HORIZON_MS, IntentAttempt, IntentBook, body_digest, intent_id_of

NOW = 1_700_000_000_000


def begin(book: IntentBook, now_ms: int = NOW, **changes: object) -> IntentAttempt:
    values: dict[str, object] = {
        "tenant": "t", "key": None, "digest": "d", "fresh_id": f"f{now_ms}", "now_ms": now_ms,
        "deadline_ms": 60_000.0,
    }  # fmt: skip
    return book.begin(**(values | changes))  # type: ignore[arg-type]


def test_a_key_names_the_intent_and_its_attempts_are_numbered() -> None:
    book = IntentBook()
    first = begin(book, key="order-7")
    second = begin(book, NOW + 500, key="order-7", digest="other")
    assert first == IntentAttempt("order-7", False, 1, NOW)
    assert second == IntentAttempt("order-7", False, 2, NOW)
    assert begin(book, NOW + 500, key="order-7", tenant="u").attempt == 1
    late = begin(book, NOW + 60_000 + HORIZON_MS + 1, key="order-7")
    assert (late.attempt, late.started_at_ms) == (1, NOW + 60_000 + HORIZON_MS + 1)


@given(st.text(max_size=300))
def test_any_key_gives_a_valid_id(key: str) -> None:
    found = intent_id_of("t", key)
    assert re.fullmatch(r"[A-Za-z0-9._:@/+\-]{1,128}", found)
    assert found == intent_id_of("t", key)
    if found != key:
        assert found != intent_id_of("u", key), "hashed keys are kept apart by tenant"


def test_without_a_key_only_an_equal_request_after_a_failure_is_a_retry() -> None:
    book = IntentBook(retry_window_ms=30_000)
    first = begin(book)
    assert (first.inferred, first.attempt) == (True, 1)
    assert begin(book, NOW + 1).intent_id != first.intent_id, "two equal requests at once are two intents"
    book.ended(first, "d", ok=False, now_ms=NOW + 100)
    assert begin(book, NOW + 150, digest="e").attempt == 1
    retry = begin(book, NOW + 200)
    assert retry == IntentAttempt(first.intent_id, True, 2, NOW)
    assert begin(book, NOW + 201).attempt == 1, "a failure is used up by one retry"
    book.ended(retry, "d", ok=True, now_ms=NOW + 300)
    assert begin(book, NOW + 400).attempt == 1
    book.ended(first, "d", ok=False, now_ms=NOW + 500)
    assert begin(book, NOW + 30_501).attempt == 1, "the window is over"


@given(
    st.integers(-(10**6), 10**13),
    st.none() | st.integers(-(10**15), 10**15),
    st.none() | st.integers(-5, 10**9),
)
def test_claims_are_believed_within_bounds(offset: int, start: int | None, attempt: int | None) -> None:
    now = NOW + abs(offset) % 10**9
    given_attempt = begin(IntentBook(), now, key="k", claimed_start_ms=start, claimed_attempt=attempt)
    assert now - 60_000 <= given_attempt.started_at_ms <= now
    assert 1 <= given_attempt.attempt <= 1000
    if start is not None and now - 60_000 <= start <= now:
        assert given_attempt.started_at_ms == start


def test_the_router_s_own_retries_and_the_client_s_share_one_numbering() -> None:
    book = IntentBook()
    first = begin(book, key="k")
    second = book.next_attempt("t", "k", first)
    third = begin(book, NOW + 10, key="k", claimed_attempt=2)
    assert (first.attempt, second.attempt, third.attempt) == (1, 2, 3)
    assert book.next_attempt("t", None, begin(book)).attempt == 2


def test_the_book_is_bounded() -> None:
    book = IntentBook(capacity=10)
    for number in range(50):
        intent = begin(book, key=f"k{number}")
        inferred = begin(book, digest=f"d{number}")
        book.ended(inferred, f"d{number}", ok=False, now_ms=NOW)
        assert intent.attempt == 1
    assert len(book) == 20


def test_digests_tell_tenant_path_and_body_apart() -> None:
    digests = {body_digest(t, p, b) for t in ("a", "b") for p in ("/x", "/y") for b in (b"", b"1")}
    assert len(digests) == 8
