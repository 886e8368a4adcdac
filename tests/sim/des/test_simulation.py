"""Whole runs: nothing gets lost, equal seeds give equal bytes, and policies see what they may and no more."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.des.attempts import Attempt, Intent
from sim.des.instance import Instance
from sim.des.metrics import CAUSES, Results
from sim.des.network import Link, Network
from sim.des.policy import (
    ADMIT,
    HOLD,
    LeastOutstanding,
    OutcomeView,
    Refusal,
    RequestView,
    RoundRobin,
    Verdict,
)
from sim.des.replicas import Replica, ReplicaSpec, ReplicaState
from sim.des.sequence import Sequence as EngineSequence
from sim.des.signals import SignalOptions
from sim.des.simulation import PolicySet, Simulation
from sim.des.views import CandidatesView, FleetView
from sim.workloads.plan import IntentSpec
from tests.sim.des.runs import balancer, intents, simulation

THREE = Network(
    ["a", "b", "c"],
    {
        ("a", "b"): Link(30.0, egress_price_per_gb=0.02),
        ("a", "c"): Link(80.0, 100.0, 0.05),
        ("b", "c"): Link(60.0),
    },
    {"eu": ["b"], "nowhere": []},
)
THREE_REPLICAS = [ReplicaSpec(region, "S2", kv_tokens=16_000) for region in ("b", "b", "c")]


def nothing_lost(run: Simulation, results: Results, offered: int) -> None:
    """Every intent ended, every token is delivered or wasted, and no memory is held."""
    columns = results.columns
    assert len(columns["cause"]) == offered
    assert (columns["cause"] != CAUSES.index("open")).all()
    assert columns["output_tokens"].sum() + columns["wasted_tokens"].sum() == results.final.generation_tokens
    assert not any(run.flow._inside)
    for replica in run.replicas:
        assert (replica.instance.running, replica.instance.waiting) == (0, 0)
        assert replica.instance.pool.used_units == 0
        replica.instance.pool.check()


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1_000),
    policy=st.sampled_from(["rr", "lor", "p2c"]),
    routers=st.sampled_from([1, 4]),
    gap_ms=st.sampled_from([30.0, 100.0, 400.0]),
    loss=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_no_token_and_no_intent_is_lost(
    seed: int, policy: str, routers: int, gap_ms: float, loss: float
) -> None:
    specs = intents(seed, 80, mean_gap_ms=gap_ms, timeout_ms=1_500.0)
    signals = SignalOptions(sample_every_ms=100.0, loss=loss, relative_error=0.3)
    run = simulation(specs, policies=policy, routers=routers, signals=signals, seed=seed)
    run.at(2_000.0, lambda s: s.fail(0))
    run.at(3_000.0, lambda s: s.start(0, 1_000.0))
    run.at(3_500.0, lambda s: s.drain(1))
    nothing_lost(run, run.run(), len(specs))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1_000))
def test_no_token_is_lost_between_regions_and_residency_always_holds(seed: int) -> None:
    specs = intents(
        seed, 80, regions=["a", "b", "c"], residencies=[None, "eu", "nowhere"], timeout_ms=1_500.0
    )

    class Anywhere:
        def choose_region(
            self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
        ) -> int | Refusal:
            return rng.choice(allowed)

    policies = PolicySet("anywhere", balancer("rr"), region=lambda router: Anywhere())
    run = simulation(specs, policies=policies, network=THREE, replicas=THREE_REPLICAS, seed=seed)
    run.at(4_000.0, lambda s: s.fail(1))
    results = run.run()
    nothing_lost(run, results, len(specs))
    region = results.columns["region"]
    for row, spec in enumerate(specs):
        if spec.residency == "eu":
            assert region[row] in (-1, 1)
        if spec.residency == "nowhere":
            assert results.columns["cause"][row] in (CAUSES.index("shed"), CAUSES.index("cancelled"))
    paid = results.columns["egress_price"] > 0
    assert paid.any()
    assert not paid[(results.columns["entry_region"] == 1) & (region == 1)].any()


@pytest.mark.parametrize("routers", [1, 4])
def test_same_seed_same_bytes_other_seed_others(routers: int) -> None:
    def digest(seed: int) -> str:
        signals = SignalOptions(loss=0.2, relative_error=0.2)
        specs = intents(3, 150)
        return simulation(specs, policies="p2c", routers=routers, signals=signals, seed=seed).run().digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_a_run_in_pieces_equals_plain_stepping() -> None:
    specs = intents(11, 200, mean_gap_ms=80.0)
    fast = simulation(specs).run()
    plain = simulation(specs, max_run_steps=1).run()
    assert fast.final.steps == plain.final.steps
    assert fast.final.preemptions == plain.final.preemptions > 0
    for name, column in fast.columns.items():
        if column.dtype == np.int64:
            assert (column == plain.columns[name]).all(), name
        else:
            np.testing.assert_allclose(column, plain.columns[name], rtol=1e-9, err_msg=name)
    assert plain.events > fast.events


def test_drain_start_and_roll_out() -> None:
    specs = intents(5, 300, mean_gap_ms=100.0)
    run = simulation(specs, signals=SignalOptions(registry_delay_ms=10.0))
    run.at(500.0, lambda s: s.roll_out([0, 1, 2], "2", load_ms=2_000.0))
    seen: list[int] = []
    for at_ms in range(600, 20_000, 200):
        run.at(float(at_ms), lambda s: seen.append(sum(r.state is ReplicaState.READY for r in s.replicas)))
    results = run.run()
    nothing_lost(run, results, len(specs))
    assert {replica.version for replica in run.replicas} == {"2"}
    assert all(replica.boot == 1 for replica in run.replicas)
    assert min(seen) == 2  # one at a time
    assert seen[-1] == 3
    assert not (results.columns["cause"] == CAUSES.index("failed")).any()  # a roll-out loses nobody


def test_a_restarted_engine_has_an_empty_cache() -> None:
    run = simulation(intents(5, 50))
    run.at(2_000.0, lambda s: s.fail(0))
    blocks: list[int] = []
    run.at(2_000.1, lambda s: blocks.append(s.replicas[0].instance.pool.cached_blocks))
    run.run()
    assert blocks == [0]


class Watcher(LeastOutstanding):
    """Notes what it was shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[RequestView, CandidatesView]] = []
        self.outcomes: list[OutcomeView] = []

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        self.seen.append((request, candidates))
        return super().choose(now_ms, request, candidates, rng)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        self.outcomes.append(outcome)


def reachable(root: object) -> list[Any]:
    """All objects that can be got at from this one, code and types aside."""
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.FunctionType):
            continue
        seen[id(item)] = item
        stack.extend(gc.get_referents(item))
    return list(seen.values())


def test_a_policy_cannot_get_at_true_lengths_or_at_an_engine() -> None:
    watcher = Watcher()
    specs = intents(2, 40)
    policies = PolicySet("watcher", lambda router: watcher, needs_prefix=True)
    simulation(specs, policies=policies).run()
    request, candidates = watcher.seen[-1]
    for name in ("output_tokens", "spec", "sequence"):
        with pytest.raises(AttributeError):
            getattr(request, name)
    for name in ("instance", "replicas", "pool", "output_tokens"):
        with pytest.raises(AttributeError):
            getattr(candidates, name)
    hidden = (IntentSpec, Intent, Attempt, Instance, EngineSequence, Replica, Simulation)
    for view in (request, candidates):
        assert not [item for item in reachable(view) if isinstance(item, hidden)]
    # What it is told afterwards is what an engine's usage report says.
    assert {outcome.output_tokens for outcome in watcher.outcomes if outcome.end == "ok"} <= {
        spec.output_tokens for spec in specs
    }


def test_a_policy_that_tries_stops_the_run() -> None:
    class Cheat(RoundRobin):
        def choose(
            self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
        ) -> int | Refusal:
            return int(request.output_tokens > 100)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="output_tokens"):
        simulation(intents(2, 5), policies=PolicySet("cheat", lambda router: Cheat())).run()


class Cap:
    """At most so many in flight; the rest waits in order, at most two seconds."""

    tick_ms: float | None = 100.0

    def __init__(self, limit: int) -> None:
        self.limit, self.inside = limit, 0
        self.most = 0
        self.queue: list[RequestView] = []

    def _enter(self) -> Literal["admit"]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        return ADMIT

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        if self.inside < self.limit:
            return self._enter()
        self.queue.append(request)
        return HOLD

    def pump(self, now_ms: float, fleet: FleetView) -> list[tuple[int, Literal["admit"] | Refusal]]:
        out: list[tuple[int, Literal["admit"] | Refusal]] = []
        while self.queue and self.queue[0].arrived_ms < now_ms - 2_000.0:
            out.append((self.queue.pop(0).number, Refusal("queue_timeout", 500.0)))
        while self.queue and self.inside < self.limit:
            out.append((self.queue.pop(0).number, self._enter()))
        return out

    def gone(self, now_ms: float, request: RequestView) -> None:
        self.queue.remove(request)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        self.inside -= 1


def test_admission_holds_releases_and_refuses() -> None:
    cap = Cap(4)
    specs = intents(9, 200, mean_gap_ms=60.0, timeout_ms=3_000.0)
    policies = PolicySet("cap", balancer("lor"), admission=lambda router: cap)
    run = simulation(specs, policies=policies)
    results = run.run()
    nothing_lost(run, results, len(specs))
    assert cap.most == 4
    assert cap.inside == 0
    assert not cap.queue
    assert results.refusals["queue_timeout"] > 10
    assert (results.columns["cause"] == CAUSES.index("shed")).any()


def test_refused_and_timed_out_intents_count_with_infinite_ttft_and_the_denominator_is_all_offered() -> None:
    specs = intents(9, 200, mean_gap_ms=20.0, timeout_ms=1_000.0)
    results = simulation(specs, warmup_ms=1_000.0).run()
    figures = results.summary()
    late = [spec for spec in specs if spec.at_ms >= 1_000.0]
    assert figures["offered"] == len(late)
    failed = 1.0 - figures["share_ok"]
    assert failed > 0.1
    assert np.isinf(results.columns["ttft_ms"]).mean() == pytest.approx(
        (results.columns["cause"] != CAUSES.index("ok")).mean()
    )
    assert figures["ttft_p99_ms"] == np.inf
    by_class = [results.summary(name) for name in results.classes]
    assert sum(f["offered"] for f in by_class) == figures["offered"]
    assert figures["goodput_tokens_per_s"] < figures["output_tokens_per_s"]


def test_an_unknown_entry_region_is_an_error() -> None:
    with pytest.raises(ValueError, match="comes from 'x'"):
        simulation(intents(1, 3, regions=["x"])).run()
