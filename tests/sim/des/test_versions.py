"""Routing by version: a request is served by exactly the version that it asks for, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minds.fleetmind.eligibility import NO_READY_ENDPOINT, RESIDENCY_FORBIDS
from sim.des.clients import ClientOptions
from sim.des.flow import RequestFlow
from sim.des.metrics import CAUSES, Results
from sim.des.network import Link, Network
from sim.des.policy import ADMIT, AdmitAll, Refusal, RequestView, RoundRobin, Verdict
from sim.des.pools import ReadyPools
from sim.des.replicas import ReplicaSpec
from sim.des.sequence import Sequence as EngineSequence
from sim.des.signals import SignalOptions
from sim.des.simulation import PolicySet, Simulation
from sim.des.views import CandidatesView, FleetView
from sim.workloads.plan import IntentSpec
from tests.sim.des.runs import balancer, intents, simulation
from tests.sim.des.test_simulation import nothing_lost

TWO = Network(["a", "b"], {("a", "b"): Link(40.0)}, {"eu": ["a"]})
OK = CAUSES.index("ok")


def asking(specs: Sequence[IntentSpec], versions: Sequence[str | None], seed: int = 0) -> list[IntentSpec]:
    """The intents, each with one of the versions."""
    rng = random.Random(seed)
    return [replace(spec, model_version=rng.choice(list(versions))) for spec in specs]


def engines(count: int, version: str = "1", region: str = "a") -> list[ReplicaSpec]:
    """Small engines of one version."""
    return [ReplicaSpec(region, "S2", version, kv_tokens=16_000)] * count


@contextmanager
def watched(run: Simulation) -> Iterator[list[tuple[str, str]]]:
    """Pairs (asked for, served by) of every first token that an engine gives."""
    seen: list[tuple[str, str]] = []
    original: Callable[[RequestFlow, EngineSequence, float], None] = RequestFlow.first_token

    def first_token(flow: RequestFlow, sequence: EngineSequence, now_ms: float) -> None:
        attempt = sequence.owner
        seen.append((attempt.view.version, run.replicas[attempt.replica].version))
        original(flow, sequence, now_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestFlow, "first_token", first_token)
        yield seen


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1_000),
    policy=st.sampled_from(["rr", "lor", "p2c"]),
    routers=st.sampled_from([1, 3]),
    registry_ms=st.sampled_from([0.0, 200.0, 3_000.0]),
    begins=st.lists(
        st.tuples(
            st.floats(0, 8_000),
            st.sampled_from(["2", "3"]),
            st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True),
            st.sampled_from([0.0, 500.0, 3_000.0]),
            st.integers(1, 3),
        ),
        max_size=3,
    ),
    fails=st.lists(st.tuples(st.floats(0, 10_000), st.integers(0, 4)), max_size=3),
)
def test_no_request_is_ever_served_by_another_version_and_no_token_is_lost(
    seed: int,
    policy: str,
    routers: int,
    registry_ms: float,
    begins: list[tuple[float, str, list[int], float, int]],
    fails: list[tuple[float, int]],
) -> None:
    specs = asking(
        intents(seed, 80, regions=["a", "b"], residencies=[None, "eu"], timeout_ms=1_500.0),
        [None, "1", "2", "3", "9"],
        seed,
    )
    run = simulation(
        specs,
        policies=policy,
        network=TWO,
        replicas=engines(2) + engines(1, "2") + engines(2, region="b"),
        signals=SignalOptions(sample_every_ms=100.0, registry_delay_ms=registry_ms),
        routers=routers,
        seed=seed,
    )
    for at_ms, version, replicas, load_ms, parallel in begins:
        run.at(
            at_ms,
            lambda s, v=version, r=replicas, ms=load_ms, p=parallel: s.roll_out(r, v, load_ms=ms, parallel=p),
        )
    for at_ms, number in fails:
        run.at(at_ms, lambda s, n=number: s.fail(n))
        run.at(at_ms + 700.0, lambda s, n=number: s.start(n, 400.0))
    with watched(run) as seen:
        results = run.run()
    assert all(asked == served for asked, served in seen)
    nothing_lost(run, results, len(specs))
    never = np.array([spec.model_version == "9" for spec in specs])
    assert not (results.columns["cause"][never] == OK).any()
    if begins:  # each roll-out comes to its end, whatever fails meanwhile
        last = {number: version for _, version, numbers, _, _ in begins[-1:] for number in numbers}
        if len(begins) == 1:
            assert all(run.replicas[number].version == version for number, version in last.items())


def test_a_roll_out_that_clients_run_ahead_of_shows_as_bad_intents() -> None:
    specs = [
        replace(spec, model_version="2" if spec.at_ms > 12_000.0 else "1")
        for spec in intents(7, 80, mean_gap_ms=400.0, timeout_ms=60_000.0)
    ]

    def play(begin_ms: float) -> Results:
        run = simulation(specs, clients=ClientOptions(max_retries=0), replicas=engines(3))
        run.at(begin_ms, lambda s: s.roll_out([1, 2], "2", load_ms=500.0, parallel=2))
        return run.run()

    late, early = play(16_000.0), play(2_000.0)
    assert NO_READY_ENDPOINT not in early.refusals
    column = late.columns
    shed = column["cause"] == CAUSES.index("shed")
    assert late.refusals[NO_READY_ENDPOINT] == shed.sum() > 0
    assert (column["ttft_ms"][shed] == np.inf).all()
    # Asked for from 12 s on, but there only after 16.5 s: all of these are bad.
    ahead = (column["offered_ms"] > 12_000.0) & (column["offered_ms"] < 16_500.0)
    assert ahead.sum() > 5
    assert not column["good"][ahead].any()
    assert early.columns["good"][ahead].any()
    assert late.summary()["good_share_intents"] < early.summary()["good_share_intents"]


def test_clients_that_come_again_wait_until_the_version_is_there() -> None:
    specs = asking(intents(8, 40, mean_gap_ms=50.0, timeout_ms=60_000.0), ["2"])
    patient = ClientOptions(max_retries=8, backoff_ms=500.0)
    run = simulation(specs, clients=patient, replicas=engines(2))
    run.at(1.0, lambda s: s.roll_out([0, 1], "2", load_ms=1_000.0, parallel=2))
    results = run.run()
    assert (results.columns["cause"] == OK).all()
    assert (results.columns["attempts"] > 1).any()


def test_a_registry_that_is_behind_sends_to_an_engine_that_has_no_such_model() -> None:
    specs = asking(intents(9, 100, mean_gap_ms=40.0), ["1"])
    behind = SignalOptions(registry_delay_ms=100_000.0)
    run = simulation(
        specs, signals=behind, clients=ClientOptions(max_retries=0), replicas=engines(1), warmup_ms=0.0
    )
    run.at(500.0, lambda s: s.fail(0))
    run.at(500.0, lambda s: s.roll_out([0], "2", load_ms=100.0))
    with watched(run) as seen:
        results = run.run()
    assert set(seen) <= {("1", "1")}
    later = results.columns["offered_ms"] > 600.0
    assert (results.columns["cause"][later] == CAUSES.index("failed")).all()


def test_a_bare_name_is_the_newest_version_with_ready_engines() -> None:
    pools = ReadyPools(1, ["2", "10"])
    assert pools.resolve(None) == "10"  # none is ready: the newest of all
    pools.add(0, 0, "2")
    assert pools.resolve(None) == "2"
    assert pools.resolve("1") == "1"
    pools.add(1, 0, "10")
    assert pools.resolve(None) == "10"
    pools.add(1, 0, "2")
    assert [part.tolist() for part in pools.of("2")] == [[0, 1]]
    assert [part.tolist() for part in pools.of("10")] == [[]]
    pools.remove(1)
    pools.remove(1)
    assert [part.tolist() for part in pools.of("2")] == [[0]]


def test_every_view_of_every_policy_has_its_own_version_only() -> None:
    version_of = ["1", "1", "2", "2", "1"]
    replicas = [
        ReplicaSpec("a" if i < 3 else "b", "S2", version, kv_tokens=16_000)
        for i, version in enumerate(version_of)
    ]
    shown: set[tuple[str, str, tuple[int, ...]]] = set()

    def note(who: str, version: str, fleet: FleetView) -> None:
        for region in range(len(fleet)):
            shown.add((who, version, tuple(fleet.candidates(region).instances.tolist())))

    class Gate(AdmitAll):
        tick_ms: float | None = 200.0

        def __init__(self) -> None:
            self.version: str | None = None

        def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
            assert self.version in (None, request.version), "one gate for each pool"
            self.version = request.version
            note("admission", request.version, fleet)
            return ADMIT

    class Region:
        def choose_region(
            self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
        ) -> int | Refusal:
            note("region", request.version, fleet)
            return rng.choice(allowed)

    class Instance(RoundRobin):
        def choose(
            self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
        ) -> int | Refusal:
            shown.add(("balancer", request.version, tuple(candidates.instances.tolist())))
            return super().choose(now_ms, request, candidates, rng)

    policies = PolicySet("watch", lambda r: Instance(), lambda r: Gate(), lambda r: Region())
    specs = asking(intents(10, 80, regions=["a", "b"]), ["1", "2"])
    simulation(specs, policies=policies, network=TWO, replicas=replicas).run()
    assert {who for who, _, _ in shown} == {"admission", "region", "balancer"}
    for _, version, numbers in shown:
        assert all(version_of[number] == version for number in numbers)


def test_a_residency_class_without_its_version_is_refused_and_one_without_a_region_by_the_law() -> None:
    specs = intents(11, 40, residencies=["eu", "nowhere"])
    network = Network(["a", "b"], {("a", "b"): Link(40.0)}, {"eu": ["a"], "nowhere": []})
    run = simulation(
        asking(specs, ["2"]), network=network, replicas=engines(1) + engines(1, "2", "b"), policies="rr"
    )
    results = run.run()
    assert not (results.columns["cause"] == OK).any()
    assert results.refusals[NO_READY_ENDPOINT] > 0
    assert results.refusals[RESIDENCY_FORBIDS] > 0


def test_a_roll_out_goes_on_where_an_engine_dies_while_draining_or_is_still_loading() -> None:
    specs = asking(intents(12, 100, mean_gap_ms=40.0, timeout_ms=60_000.0), ["1", "2"])
    run = simulation(specs, policies=PolicySet("rr", balancer("rr")), replicas=engines(3))
    run.at(900.0, lambda s: s.fail(2))
    run.at(950.0, lambda s: s.start(2, 4_000.0))
    run.at(1_000.0, lambda s: s.roll_out([0, 1, 2], "2", load_ms=300.0))
    run.at(1_001.0, lambda s: s.fail(0))
    nothing_lost(run, run.run(), len(specs))
    assert [replica.version for replica in run.replicas] == ["2", "2", "2"]
