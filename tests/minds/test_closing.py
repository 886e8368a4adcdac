"""Closing: nothing stays open, nothing is lost that may still end, and the topics' order does not matter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minds.closing import ClosingTerms, Ledger, OpenDecision, RouterWatch, lost_outcome, open_decision
from schemas.decisions import Decision

T0 = 1_796_000_000_000
TERMS = ClosingTerms()


def decision(number: int = 0, **changes: Any) -> Decision:
    fields: dict[str, Any] = {
        "decision_id": f"d{number}",
        "intent_id": f"n{number}",
        "intent_inferred": False,
        "attempt": 2,
        "at_ms": T0,
        "intent_started_at_ms": T0 - 100,
        "deadline_at_ms": T0 + 60_000,
        "router": "r-1",
        "router_boot": "b1",
        "tenant": "t",
        "service_class": "chat",
        "pool": "m@v1",
        "entry_region": "edge",
        "verdict": "dispatched",
        "region": "eu",
        "instance": "i-1",
        "ttft_slo_ms": 2000.0,
        "tpot_slo_ms": 60.0,
        "work_tokens": 300.0,
    }
    return Decision(**(fields | changes))


@dataclass
class Router:
    boot: str
    version: int
    boot_started_at_ms: int = T0 - 1_000
    router: str = "r-1"
    epoch: int = 1


def entry(number: int = 0, **changes: Any) -> OpenDecision:
    return open_decision(decision(number, **changes), "r-1")


def test_the_deadline_and_its_horizon() -> None:
    watch = RouterWatch()
    assert watch.ending_of(entry(), TERMS, T0 + 90_000) is None
    assert watch.ending_of(entry(), TERMS, T0 + 90_001) == "deadline"


def test_a_newer_boot_of_the_router_after_its_grace() -> None:
    watch = RouterWatch()
    watch.observe([Router("b1", 1)], T0)
    watch.observe([Router("b2", 1, boot_started_at_ms=T0 + 5_000)], T0 + 6_000)
    assert watch.ending_of(entry(), TERMS, T0 + 8_000) is None
    assert watch.ending_of(entry(), TERMS, T0 + 9_100) == "router_restarted"
    of_new_boot = entry(router_boot="b2", at_ms=T0 + 7_000)
    assert watch.ending_of(of_new_boot, TERMS, T0 + 9_100) is None


def test_a_row_of_an_older_boot_says_nothing_of_a_newer_boots_decisions() -> None:
    watch = RouterWatch()
    watch.observe([Router("b0", 1)], T0)
    assert watch.ending_of(entry(router_boot="b1"), TERMS, T0 + 20_000) is None


def test_silence_counts_only_while_rows_can_be_read() -> None:
    watch = RouterWatch()
    watch.observe([Router("b1", 1)], T0)
    watch.observe([Router("b1", 1)], T0 + 14_000)
    assert watch.ending_of(entry(), TERMS, T0 + 14_000) is None
    assert watch.ending_of(entry(), TERMS, T0 + 15_001) == "router_silent"
    watch.observe([Router("b1", 1)], T0 + 15_500, reading=False)
    assert watch.ending_of(entry(), TERMS, T0 + 16_000) is None
    watch.observe([Router("b1", 2)], T0 + 20_000)
    assert watch.ending_of(entry(at_ms=T0 + 19_000), TERMS, T0 + 33_500) is None
    assert watch.ending_of(entry(at_ms=T0 + 19_000), TERMS, T0 + 35_001) == "router_silent"


def test_a_lost_outcome_is_inferred_and_makes_nothing_up() -> None:
    outcome = lost_outcome(entry(), "router_silent", T0 + 20_000)
    assert (outcome.cause, outcome.inferred, outcome.within_slo) == ("lost", True, False)
    assert (outcome.decision_id, outcome.attempt, outcome.instance) == ("d0", 2, "i-1")
    assert outcome.started_at_ms == T0
    assert (outcome.ttft_ms, outcome.output_tokens, outcome.wasted_tokens) == (None, None, None)


@given(st.integers(1, 25), st.integers(0, 2**20))
def test_whatever_the_order_only_what_has_no_outcome_stays_open(count: int, seed: int) -> None:
    rng = random.Random(seed)
    ended = {n for n in range(count) if rng.random() < 0.7}
    steps = [("decided", n) for n in range(count)] + [("ended", n) for n in ended]
    rng.shuffle(steps)
    ledger = Ledger()
    for kind, number in steps:
        if kind == "decided":
            ledger.decided(entry(number))
        else:
            ledger.ended(f"d{number}", T0)
    assert set(ledger.open) == {f"d{n}" for n in range(count) if n not in ended}
    assert ledger.marks == {}
    assert ledger.changed == {f"d{n}" for n in range(count)}
    lost = ledger.lost(RouterWatch(), TERMS, T0 + 100_000)
    assert {e.decision_id for e, _ in lost} == set(ledger.open)


def test_marks_expire() -> None:
    ledger = Ledger()
    ledger.ended("d0", T0)
    ledger.forget_marks(TERMS, T0 + 120_000)
    assert set(ledger.marks) == {"d0"}
    ledger.forget_marks(TERMS, T0 + 120_001)
    assert ledger.marks == {}
