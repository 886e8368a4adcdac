"""Admission policies: what they let in, hold and refuse, and how their limits move."""

from __future__ import annotations

import pytest

from sim.des.policy import ADMIT, HOLD, Refusal
from sim.policies.admissions import ADMISSIONS
from sim.policies.limiters import WINDOW, ClientThrottling, EnvoyAdaptive, Gradient2, NaiveAimd, Vegas
from sim.policies.queues import RetryBudget, Saturation, SmgClasses, StaticCap
from tests.sim.policies.seen import Seen, outcome, request

FLEET = Seen([0, 0], [1, 1]).fleet
BUSY = Seen([30, 30], [100, 100], [0.9, 0.9]).fleet


def test_static_cap_holds_over_the_cap_and_lets_in_by_deadline() -> None:
    policy = StaticCap(cap=1.0, slack=1.0)
    assert [policy.admit(0.0, request(i), FLEET) for i in range(2)] == [ADMIT, ADMIT]
    assert policy.admit(0.0, request(2, ttft_slo_ms=30_000.0), FLEET) == HOLD
    assert policy.admit(0.0, request(3, ttft_slo_ms=2_000.0), FLEET) == HOLD
    assert not policy.pump(1.0, FLEET)
    policy.ended(10.0, request(0), outcome())
    assert policy.pump(10.0, FLEET) == [(3, ADMIT)]
    policy.ended(20.0, request(1), outcome())
    assert policy.pump(20.0, FLEET) == [(2, ADMIT)]


def test_static_cap_gives_up_who_is_out_of_time_and_forgets_who_left() -> None:
    policy = StaticCap(cap=1.0, slack=1.0)
    for i in range(2):
        policy.admit(0.0, request(i), FLEET)
    for i in (2, 3):
        assert policy.admit(0.0, request(i), FLEET) == HOLD
    policy.gone(500.0, request(2))
    assert policy.pump(2_001.0, FLEET) == [(3, Refusal("deadline_unreachable"))]
    late = policy.admit(9_000.0, request(4, first_ms=0.0), FLEET)
    assert late == Refusal("deadline_unreachable")


def test_a_retry_budget_is_a_share_of_first_attempts() -> None:
    budget = RetryBudget(0.1, bucket=2.0)
    retry, first = request(attempt=2), request()
    assert [budget.allows(retry) for _ in range(3)] == [True, True, False]
    assert all(budget.allows(first) for _ in range(11))
    assert [budget.allows(retry) for _ in range(2)] == [True, False]


def test_smg_keeps_a_floor_for_interactive_and_promotes_who_waits_long() -> None:
    policy = SmgClasses(slots=8.0)
    batch = [policy.admit(0.0, request(i, ttft_slo_ms=30_000.0), FLEET) for i in range(16)]
    assert batch.count(ADMIT) == 11  # 16 slots less 4 for interactive and 1.6 for long
    assert policy.admit(1.0, request(100), FLEET) == ADMIT
    waiting = next(i for i, verdict in enumerate(batch) if verdict == HOLD)
    policy.gone(1.0, request(waiting, ttft_slo_ms=30_000.0))
    assert waiting not in dict(policy.pump(2.0, FLEET))
    late = policy.pump(300_001.0, FLEET)
    assert late
    assert {verdict for _, verdict in late} == {Refusal("queue_timeout")}


def test_saturation_reads_the_pool_and_sheds_batch_work_first() -> None:
    policy = Saturation()
    assert policy.saturation(FLEET) == 0.0
    assert policy.saturation(BUSY) == pytest.approx(6.0)
    assert policy.admit(1_000.0, request(), FLEET) == ADMIT
    assert policy.admit(1_000.0, request(1, ttft_slo_ms=30_000.0), BUSY) == Refusal("saturated", 1_000.0)
    assert policy.admit(1_000.0, request(2), BUSY) == HOLD
    assert policy.pump(1_100.0, FLEET) == [(2, ADMIT)]
    stale = Saturation(stale_ms=50.0)
    assert stale.saturation(FLEET) == 1.0  # the sample is 100 ms old: their rule halts the pool


def _window(policy: Gradient2 | Vegas | EnvoyAdaptive | NaiveAimd, tpot_ms: float, in_flight: int) -> float:
    policy._in_flight = in_flight
    for _ in range(WINDOW):
        policy._in_flight += 1
        policy.ended(0.0, request(), outcome(tpot_ms=tpot_ms))
    return policy.limit


def test_limiters_grow_while_times_are_short_and_shrink_when_they_rise() -> None:
    for policy in (Gradient2(), Vegas(), EnvoyAdaptive()):
        before = policy.limit
        grown = _window(policy, 10.0, 60)
        assert grown >= before
        for _ in range(6):
            last = _window(policy, 60.0, 60)
        assert last < grown


def test_aimd_follows_the_service_level() -> None:
    policy = NaiveAimd()
    assert _window(policy, 20.0, 60) == 66.0
    assert _window(policy, 100.0, 60) == pytest.approx(66.0 * 0.9)  # over the 60 ms level


def test_a_limiter_refuses_at_its_limit_and_counts_each_instance() -> None:
    policy = NaiveAimd()
    verdicts = [policy.admit(0.0, request(i), FLEET) for i in range(130)]
    assert verdicts.count(ADMIT) == 128  # 64 for each of two instances
    assert verdicts[-1] == Refusal("over_limit")


def test_client_throttling_refuses_only_when_half_and_more_fail() -> None:
    policy = ClientThrottling()
    for _ in range(100):
        policy.ended(0.0, request(), outcome("timeout", ttft_ms=None))
    refused = sum(policy.admit(1.0, request(i), FLEET) != ADMIT for i in range(200))
    assert refused > 150
    calm = ClientThrottling()
    for i in range(100):
        calm.ended(0.0, request(), outcome("ok" if i % 2 else "timeout"))
    assert all(calm.admit(1.0, request(i), FLEET) == ADMIT for i in range(100))


@pytest.mark.parametrize("name", [name for name in ADMISSIONS if name != "all"])
def test_limits_are_shared_among_routers_where_there_are_limits(name: str) -> None:
    entry = ADMISSIONS[name]
    assert any(knob.name == "routers" for knob in entry.knobs)
    assert entry.factory({"routers": 4})(0) is not entry.factory({"routers": 4})(1)
