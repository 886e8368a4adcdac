"""What the client does after an attempt."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.loadgen.options import LoadOptions
from sim.loadgen.retry import (
    AttemptEnd,
    Cause,
    Retry,
    RetryPolicy,
    cancel_after_tokens,
    final_cause,
    parse_retry_after_ms,
)
from sim.workloads.plan import plan_from_generator

OPTIONS = LoadOptions(backoff_base_ms=100.0, backoff_cap_ms=800.0, max_retries=2)


def policy() -> RetryPolicy:
    return RetryPolicy(OPTIONS, random.Random(1))


def after(
    retries: RetryPolicy,
    end: AttemptEnd,
    *,
    status: int | None = None,
    retry_after_ms: float | None = None,
    left_ms: float = 1e9,
) -> Retry | None:
    return retries.after(end, status=status, retry_after_ms=retry_after_ms, left_ms=left_ms)


@pytest.mark.parametrize("end", [AttemptEnd.REFUSED, AttemptEnd.DROPPED])
def test_unanswered_attempts_go_elsewhere_without_a_budget(end: AttemptEnd) -> None:
    retries = policy()
    for attempt in range(40):
        ceiling_ms = min(800.0, 100.0 * 2**attempt)
        retry = after(retries, end)
        assert retry is not None
        assert retry.elsewhere
        assert ceiling_ms / 2 <= retry.wait_ms <= ceiling_ms


def test_a_shed_answer_is_retried_only_where_it_says_when_and_within_the_budget() -> None:
    assert after(policy(), AttemptEnd.SHED, status=429) is None
    retries = policy()
    for _ in range(2):
        retry = after(retries, AttemptEnd.SHED, status=503, retry_after_ms=1_000.0)
        assert retry is not None
        assert not retry.elsewhere
        assert retry.wait_ms > 1_000.0
    assert after(retries, AttemptEnd.SHED, status=503, retry_after_ms=1_000.0) is None


def test_server_errors_spend_the_same_budget_and_errors_in_a_stream_are_final() -> None:
    retries = policy()
    assert after(retries, AttemptEnd.ERROR, status=502) is not None
    assert after(retries, AttemptEnd.SHED, status=429, retry_after_ms=0.0) is not None
    assert after(retries, AttemptEnd.ERROR, status=500) is None
    assert after(policy(), AttemptEnd.ERROR, status=200) is None
    assert after(policy(), AttemptEnd.SHED, status=200) is None


@pytest.mark.parametrize(
    "end", [AttemptEnd.OK, AttemptEnd.CANCELLED, AttemptEnd.TIMEOUT, AttemptEnd.REJECTED]
)
def test_these_ends_are_final(end: AttemptEnd) -> None:
    assert after(policy(), end, status=400, retry_after_ms=0.0) is None


@given(
    end=st.sampled_from(AttemptEnd), left_ms=st.floats(-10, 2_000), wait_ms=st.none() | st.floats(0, 3_000)
)
def test_no_wait_outlives_the_intent(end: AttemptEnd, left_ms: float, wait_ms: float | None) -> None:
    retry = after(policy(), end, status=503, retry_after_ms=wait_ms, left_ms=left_ms)
    assert retry is None or 0 < retry.wait_ms < left_ms


def test_final_causes() -> None:
    refused, dropped, shed = AttemptEnd.REFUSED, AttemptEnd.DROPPED, AttemptEnd.SHED
    assert final_cause([refused, refused]) is Cause.UNREACHED
    assert final_cause([dropped, refused]) is Cause.FAILED
    assert final_cause([refused, shed]) is Cause.SHED
    assert final_cause([shed, AttemptEnd.OK]) is Cause.OK
    assert final_cause([shed, AttemptEnd.TIMEOUT]) is Cause.TIMEOUT
    assert final_cause([AttemptEnd.REJECTED]) is Cause.FAILED
    assert final_cause([AttemptEnd.CANCELLED]) is Cause.CANCELLED
    assert final_cause([]) is Cause.FAILED


def test_cancels_are_seeded_and_follow_the_share() -> None:
    specs = plan_from_generator(rate_rps=50.0, duration_ms=60_000.0, seed=2)
    chosen = [(spec, cancel_after_tokens(spec, 7, 0.1)) for spec in specs]
    cancels = [(spec, tokens) for spec, tokens in chosen if tokens is not None]
    assert len(cancels) / len(specs) == pytest.approx(0.1, abs=0.03)
    assert all(1 <= tokens < spec.output_tokens for spec, tokens in cancels)
    assert chosen == [(spec, cancel_after_tokens(spec, 7, 0.1)) for spec in specs]
    assert cancel_after_tokens(specs[0], 7, 0.0) is None
    assert cancel_after_tokens(replace(specs[0], output_tokens=1), 7, 1.0) == 1


def test_retry_after() -> None:
    assert parse_retry_after_ms("1.5") == 1_500.0
    for value in (None, "", "soon", "-1", "nan", "inf", "Wed, 21 Oct 2015 07:28:00 GMT"):
        assert parse_retry_after_ms(value) is None


def test_options_refuse_nonsense() -> None:
    for bad in (
        {"cancel_share": 1.5},
        {"max_retries": -1},
        {"backoff_base_ms": 0.0},
        {"backoff_base_ms": 5_000.0},
        {"connect_timeout_ms": float("nan")},
        {"progress_every_s": 0.0},
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            LoadOptions(**bad)  # type: ignore[arg-type]
