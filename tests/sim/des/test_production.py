"""Production minds run in the simulator through an adapter, and do what they do at the router."""

from __future__ import annotations

from sim.des.clients import ClientOptions
from sim.des.production import LeastOutstandingMind
from sim.des.signals import SignalOptions
from sim.des.simulation import PolicySet
from tests.sim.des.runs import intents, simulation


def test_the_routers_own_mind_runs_and_beats_round_robin() -> None:
    specs = intents(21, 400, mean_gap_ms=80.0, timeout_ms=60_000.0)
    policies = PolicySet("mind", lambda router: LeastOutstandingMind())
    patient = ClientOptions()
    mind = simulation(specs, policies=policies, clients=patient).run().summary()
    plain = simulation(specs, policies="rr", clients=patient).run().summary()
    assert mind["ttft_p50_ms"] < plain["ttft_p50_ms"]
    assert mind["share_ok"] >= plain["share_ok"]


def test_it_goes_on_without_any_signal() -> None:
    specs = intents(21, 100)
    policies = PolicySet("mind", lambda router: LeastOutstandingMind())
    lost = SignalOptions(loss=1.0)
    figures = simulation(specs, policies=policies, signals=lost, routers=4).run().summary()
    assert figures["share_ok"] > 0.3
