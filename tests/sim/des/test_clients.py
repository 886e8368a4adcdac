"""Arrivals and patience: open, closed and partly open, retries with backoff, networks."""

from __future__ import annotations

from random import Random

import pytest

from sim.des.clients import (
    ClientOptions,
    ClosedArrivals,
    OpenArrivals,
    PartlyOpenArrivals,
    sessions_of,
)
from sim.des.network import Link, Network
from sim.des.policy import AdmitAll, RequestView, Verdict
from sim.des.simulation import PolicySet, Simulation
from sim.des.views import FleetView
from tests.sim.des.runs import balancer, intents, simulation


def with_arrivals(run: Simulation, arrivals: object) -> Simulation:
    run._arrivals = arrivals  # type: ignore[assignment]
    run._until_ms = 1e8
    return run


def test_sessions_share_their_second_block() -> None:
    specs = intents(4, 60)
    sessions = sessions_of(specs)
    assert sum(map(len, sessions)) == len(specs)
    assert max(map(len, sessions)) > 1
    for session in sessions:
        assert len({spec.prefix_blocks[1] for spec in session if len(spec.prefix_blocks) > 1}) <= 1


@pytest.mark.parametrize("kind", ["open", "partly", "closed"])
def test_every_intent_is_offered_once(kind: str) -> None:
    specs = intents(4, 60)
    sessions = sessions_of(specs)
    arrivals = {
        "open": lambda: OpenArrivals(specs),
        "partly": lambda: PartlyOpenArrivals(sessions, think_ms=500.0, seed=1),
        "closed": lambda: ClosedArrivals(sessions, users=3, think_ms=100.0, seed=1),
    }[kind]()
    results = with_arrivals(simulation(specs), arrivals).run()
    assert sorted(results.columns["input_tokens"]) == sorted(spec.input_tokens for spec in specs)


def test_a_closed_workload_never_has_more_intents_than_users() -> None:
    specs = intents(4, 120, mean_gap_ms=1.0)
    arrivals = ClosedArrivals(sessions_of(specs), users=3, think_ms=50.0, seed=1)
    results = with_arrivals(simulation(specs), arrivals).run()
    changes = [(at_ms, 1) for at_ms in results.columns["offered_ms"]]
    changes += [(at_ms, -1) for at_ms in results.columns["ended_ms"]]
    inside = most = 0
    for _, change in sorted(changes, key=lambda change: (change[0], change[1])):
        inside += change
        most = max(most, inside)
    assert most == 3


def test_a_next_turn_waits_for_the_answer() -> None:
    specs = intents(4, 60)
    arrivals = PartlyOpenArrivals(sessions_of(specs), think_ms=0.0, seed=1)
    assert [spec.intent_id for _, spec in arrivals.start()] == [s[0].intent_id for s in sessions_of(specs)]
    longest = max(sessions_of(specs), key=len)
    at_ms, following = arrivals.after(longest[0], 1e6) or (0.0, None)
    assert (at_ms, following) == (1e6, longest[1])


def test_backoff_doubles_up_to_its_cap_and_obeys_what_it_is_told() -> None:
    options = ClientOptions(max_retries=3, backoff_ms=100.0, backoff_cap_ms=250.0)
    rng = Random(1)
    for attempts, low, high in [(1, 50.0, 100.0), (2, 100.0, 200.0), (3, 125.0, 250.0)]:
        waits = [options.retry_wait_ms("timeout", attempts, None, rng) for _ in range(50)]
        assert all(wait is not None and low <= wait <= high for wait in waits)
    assert options.retry_wait_ms("shed", 1, 5_000.0, rng) == 5_000.0
    assert options.retry_wait_ms("timeout", 4, None, rng) is None
    assert options.retry_wait_ms("cancelled", 1, None, rng) is None
    assert ClientOptions(retry_on=frozenset({"failed"})).retry_wait_ms("timeout", 1, None, rng) is None


def test_the_clock_runs_from_the_first_attempt() -> None:
    class SecondTime(AdmitAll):
        def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
            from sim.des.policy import Refusal

            return Refusal("not_yet", 700.0) if request.attempt == 1 else "admit"

    specs = intents(3, 5, mean_gap_ms=5_000.0)
    policies = PolicySet("second", balancer("lor"), admission=lambda router: SecondTime())
    results = simulation(specs, policies=policies, clients=ClientOptions()).run()
    assert (results.columns["attempts"] == 2).all()
    assert (results.columns["ttft_ms"] > 700.0).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"max_retries": -1},
        {"cancel_share": 2.0},
        {"backoff_ms": 0.0},
        {"retry_on": frozenset({"ok"})},
    ],
)
def test_impossible_clients_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"[Cc]lients|Backoff"):
        ClientOptions(**bad)  # type: ignore[arg-type]


def test_network_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="no link between the regions 'a' and 'b'"):
        Network(["a", "b"])
    with pytest.raises(ValueError, match="no region 'x'"):
        Network(["a"], residency={"eu": ["x"]})
    with pytest.raises(ValueError, match="RTT"):
        Link(-1.0)
    link = Link(30.0, 8.0, 1.0)
    assert link.one_way_ms(1_000) == pytest.approx(15.0 + 4.0)  # 4,000 bytes at a megabyte a second
    assert link.price(250_000_000) == pytest.approx(1.0)
    both = Network(["a", "b"], {("a", "b"): link})
    assert both.matrix()[1][0] is link
    assert both.allowed("eu") == frozenset()
    assert both.allowed(None) == {0, 1}
