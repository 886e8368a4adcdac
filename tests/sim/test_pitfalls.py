"""The pitfalls of the yardstick, one test for each: it fails if someone falls into it.

Some are held by tests elsewhere as well; here is the list in one place (docs/yardstick.md, "Pitfalls").
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf
from random import Random

import numpy as np
import pytest
import yaml

from sim.des.clients import ClientOptions, ClosedArrivals, sessions_of
from sim.des.metrics import CAUSES
from sim.des.network import single_region
from sim.des.policy import Refusal, RequestView
from sim.des.replicas import ReplicaSpec
from sim.des.signals import SignalOptions
from sim.des.simulation import FleetSpec, PolicySet, Simulation
from sim.experiments.files_io import built_in
from sim.experiments.spec import Experiment
from sim.experiments.tune import UNTUNED
from sim.policies.admissions import ADMISSIONS
from sim.policies.balancers import BALANCERS
from sim.report.tables import DIFFERENCES, MAIN
from tests.sim.des.runs import intents, simulation
from tests.sim.policies.seen import Seen, outcome, request

EXPERIMENTS = {
    name: Experiment.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    for name, path in built_in().items()
}


def policy(name: str, **knobs: float) -> PolicySet:
    """A balancer by name."""
    entry = BALANCERS[name]
    return PolicySet(name, entry.factory(knobs), needs_prefix=entry.needs_prefix)


def test_open_and_closed_loops_are_both_run_and_are_not_the_same() -> None:
    loops = {
        (load.clients or experiment.clients).loop
        for experiment in EXPERIMENTS.values()
        for load in experiment.loads
    }
    assert {"open", "closed"} <= loops
    specs = intents(1, 120, mean_gap_ms=10.0, timeout_ms=1e6)
    specs = [replace(spec, deadline_ms=1e9) for spec in specs]
    open_run = simulation(specs, clients=ClientOptions(max_retries=0)).run()
    sessions = sessions_of(specs)
    fleet = FleetSpec(single_region(), [ReplicaSpec("a", "S2", kv_tokens=16_000)] * 3)
    arrivals = ClosedArrivals(sessions, users=2, think_ms=0.0, seed=0)
    closed = Simulation(
        fleet, policy("lor"), arrivals, until_ms=1e8, clients=ClientOptions(max_retries=0)
    ).run()
    # The same requests: a closed loop of two users never queues as the open one does.
    assert np.median(closed.columns["ttft_ms"]) < 0.5 * np.median(open_run.columns["ttft_ms"])


class RefuseFirst:
    """Refuses every first attempt; the second one is let in."""

    tick_ms = None

    def admit(self, now_ms, request, fleet):
        return Refusal("first") if request.attempt == 1 else "admit"

    def pump(self, now_ms, fleet):
        return ()

    def gone(self, now_ms, request):
        pass

    def ended(self, now_ms, request, outcome):
        pass


def test_the_slo_clock_starts_at_the_first_attempt() -> None:
    specs = intents(2, 40, mean_gap_ms=2_000.0)
    once = simulation(specs, clients=ClientOptions(max_retries=2, backoff_ms=1_000.0)).run()
    policies = PolicySet("late", policy("lor").balancer, lambda router: RefuseFirst())
    late = simulation(
        specs, policies=policies, clients=ClientOptions(max_retries=2, backoff_ms=1_000.0)
    ).run()
    answered = late.columns["cause"] == CAUSES.index("ok")
    assert answered.any()
    assert (late.columns["attempts"][answered] >= 2).all()
    assert (late.columns["ttft_ms"][answered] >= once.columns["ttft_ms"].min() + 500.0).all()


class RefuseAll(RefuseFirst):
    """Refuses everything."""

    def admit(self, now_ms, request, fleet):
        return Refusal("never")


def test_the_denominator_is_unique_intents_offered_and_the_refused_wait_for_ever() -> None:
    specs = intents(3, 60)
    policies = PolicySet("never", policy("lor").balancer, lambda router: RefuseAll())
    results = simulation(specs, policies=policies, clients=ClientOptions(max_retries=2)).run()
    figures = results.summary()
    assert figures["offered"] == int((np.array([s.at_ms for s in specs]) >= 100.0).sum())
    assert figures["good_share_intents"] == 0.0
    assert figures["ttft_p50_ms"] == inf
    assert figures["attempts_per_intent"] > 1.0
    assert (results.columns["ttft_ms"] == inf).all()


def test_every_class_is_reported_also_one_that_gets_nothing() -> None:
    specs = intents(4, 80)

    class NoBatch(RefuseFirst):
        def admit(self, now_ms, request, fleet):
            return Refusal("batch") if request.service_class == "batch" else "admit"

    policies = PolicySet("starve", policy("lor").balancer, lambda router: NoBatch())
    results = simulation(specs, policies=policies).run()
    assert results.summary("batch")["good_share_intents"] == 0.0
    # In tokens the starved class doesn't even show: both kinds of share are in the tables.
    names = {metric.name for metric in MAIN} & {"good_share_tokens", "good_share_intents"}
    assert len(names) == 2


def test_ttft_tpot_goodput_and_total_output_stand_together_in_tokens_and_intents() -> None:
    assert {metric.name for metric in DIFFERENCES} >= {
        "ttft_p50_ms",
        "tpot_p50_ms",
        "goodput_tokens_per_s",
        "goodput_intents_per_s",
        "output_tokens_per_s",
    }


@pytest.mark.parametrize("name", ["rr", "gie", "predicted_ttft"])
def test_the_same_warm_up_is_dropped_in_every_arm(name: str) -> None:
    specs = intents(5, 100)
    results = simulation(specs, policies=policy(name), warmup_ms=3_000.0).run()
    kept = results.columns["offered_ms"][results.measured()]
    assert kept.tolist() == [spec.at_ms for spec in specs if spec.at_ms >= 3_000.0]


def test_a_router_sees_no_output_length_and_only_a_guess_of_the_cache() -> None:
    assert not [f.name for f in fields(RequestView) if "output" in f.name]
    seen: list[float] = []

    class Watch:
        def choose(self, now_ms, request, candidates, rng):
            seen.append(float(candidates.matched_tokens(request.blocks)[0]))
            return 0

        def ended(self, now_ms, request, outcome):
            pass

    first = replace(intents(6, 1)[0], at_ms=0.0, input_tokens=2_000, prefix_blocks=(1, 2, 3))
    again = replace(first, intent_id="again", at_ms=1.0)  # long before the engine has computed anything
    one = [ReplicaSpec("a", "S2")]
    policies = PolicySet("watch", lambda router: Watch(), needs_prefix=True)
    simulation([first, again], policies=policies, replicas=one, warmup_ms=0.0).run()
    assert seen == [0.0, 1_536.0]  # its own placement, which the engine's cache doesn't hold yet


def test_prediction_errors_are_injected() -> None:
    specs = intents(7, 200, mean_gap_ms=40.0)
    right = simulation(specs, policies=policy("predicted_ttft")).run()
    wrong = simulation(specs, policies=policy("predicted_ttft", rate_error=0.8)).run()
    assert right.digest() != wrong.digest()
    knobs = [
        arm.balancer.knobs.get("rate_error", 0.0)
        for experiment in EXPERIMENTS.values()
        for arm in experiment.arms
    ]
    assert max(knobs) > 0
    assert "rate_error" in UNTUNED  # an injected error is no knob to tune away


def test_signals_age_and_own_dispatches_are_seen_at_once() -> None:
    # Two prompts in the gap between two samples: the second must not follow the first.
    specs = [
        replace(spec, at_ms=5_000.0 + i, prefix_blocks=(), input_tokens=5_000)
        for i, spec in enumerate(intents(8, 3))
    ]
    slow = SignalOptions(sample_every_ms=4_900.0, delay_ms=1_000.0)
    for name in ("lor", "p2c", "lpwl", "predicted_ttft"):
        results = simulation(
            specs,
            policies=policy(name),
            signals=slow,
            replicas=[ReplicaSpec("a", "S2")] * 2,
            warmup_ms=0.0,
        ).run()
        assert len(set(results.columns["instance"][:2].tolist())) == 2, name
    ages = {
        (load.signals or experiment.fleet.signals).sample_every_ms
        for experiment in EXPERIMENTS.values()
        for load in experiment.loads
    }
    assert min(ages) <= 50.0
    assert max(ages) >= 1_000.0


def test_routers_see_each_other_only_through_the_log() -> None:
    counts = {
        load.routers_per_region or experiment.fleet.routers_per_region
        for experiment in EXPERIMENTS.values()
        for load in experiment.loads
    }
    assert {1, 4, 16} <= counts
    # Sixteen prompts at once, no sample between them: routers that are told share them out evenly, those
    # that aren't pile up.
    specs = [
        replace(spec, at_ms=1_000.0 + 10.0 * i, prefix_blocks=(), input_tokens=4_000, output_tokens=200)
        for i, spec in enumerate(intents(12, 16))
    ]
    most = {}
    for delay_ms in (0.0, 1e6):
        signals = SignalOptions(sample_every_ms=900.0, delay_ms=0.0, log_delay_ms=delay_ms)
        results = simulation(
            specs,
            policies=policy("lor"),
            signals=signals,
            replicas=[ReplicaSpec("a", "S2")] * 4,
            routers=16,
            warmup_ms=0.0,
            clients=ClientOptions(max_retries=0),
        ).run()
        most[delay_ms] = np.bincount(results.columns["instance"], minlength=4).max()
    assert most[0.0] == 4
    assert most[1e6] > 4


def test_an_engine_of_another_version_is_never_a_candidate() -> None:
    specs = [replace(spec, model_version="2") for spec in intents(13, 60)]
    mixed = [ReplicaSpec("a", "S2", version, kv_tokens=16_000) for version in ("1", "2", "1", "2")]
    for name in BALANCERS:
        results = simulation(specs, policies=policy(name), replicas=mixed, warmup_ms=0.0).run()
        used = results.columns["instance"][results.columns["instance"] >= 0]
        assert set(used.tolist()) == {1, 3}, name
    for name in ADMISSIONS:
        gated = PolicySet(name, policy("lor").balancer, ADMISSIONS[name].factory({}))
        results = simulation(specs, policies=gated, replicas=mixed, warmup_ms=0.0).run()
        assert set(results.columns["instance"].tolist()) <= {-1, 1, 3}, name


def test_loads_are_swept_across_the_knee() -> None:
    swept = [experiment for experiment in EXPERIMENTS.values() if experiment.knee is not None]
    assert swept, "no built-in experiment knows its knee"
    for experiment in swept:
        assert experiment.knee is not None
        rates = [load.rate_rps for load in experiment.loads if load.rate_rps is not None]
        if rates:
            assert min(rates) < experiment.knee.rate_rps < max(rates), experiment.name
        else:
            speeds = [load.speed for load in experiment.loads if load.speed is not None]
            assert len(set(speeds)) >= 2, experiment.name


def test_one_prefix_common_to_all_does_not_send_all_to_one_engine() -> None:
    specs = [
        replace(spec, input_tokens=3_000, prefix_blocks=(0, 100 + i, 300 + i, 500 + i, 700 + i))
        for i, spec in enumerate(intents(9, 120))
    ]
    for name in ("prefix_hash", "gie", "lpwl", "predicted_ttft"):
        results = simulation(
            specs, policies=policy(name), replicas=[ReplicaSpec("a", "S2")] * 3, warmup_ms=0.0
        ).run()
        placed = results.columns["instance"]
        counts = np.bincount(placed[placed >= 0], minlength=3)
        assert counts.max() < 0.7 * counts.sum(), (name, counts)


def test_several_seeds_and_never_one_lucky_load() -> None:
    for experiment in EXPERIMENTS.values():
        assert len(experiment.seeds) >= 3, experiment.name
        assert experiment.warmup_share > 0, experiment.name


def test_a_missing_figure_is_unknown_and_draws_nobody() -> None:
    specs = intents(10, 150)
    bad = SignalOptions(missing=1.0)
    for name in BALANCERS:
        results = simulation(specs, policies=policy(name), signals=bad, warmup_ms=0.0).run()
        used = results.columns["instance"][results.columns["instance"] >= 0]
        counts = np.bincount(used, minlength=3)
        assert counts.min() > 0.1 * counts.sum(), (name, counts)


def test_clocks_that_disagree_stop_nothing() -> None:
    specs = intents(11, 150)
    skewed = simulation(specs, signals=SignalOptions(skew_ms=300.0), warmup_ms=0.0).run()
    assert skewed.summary()["share_ok"] > 0.3
    assert skewed.digest() != simulation(specs, warmup_ms=0.0).run().digest()


def test_strict_priority_starves_nobody_for_ever() -> None:
    gate = ADMISSIONS["smg_classes"].make(slots=2.0, floor_share=0.0)
    fleet = Seen([0], [0]).fleet
    number = 0
    while gate.admit(0.0, request(number), fleet) == "admit":
        number += 1
    assert gate.admit(0.0, request(900, ttft_slo_ms=30_000.0), fleet) == "hold"
    entered: list[int] = []
    now_ms = 0.0
    rng = Random(0)
    while 900 not in entered and now_ms < 300_000.0:
        now_ms += 500.0
        number += 1
        gate.admit(now_ms, request(number + 1_000), fleet)
        gate.ended(now_ms, request(rng.randrange(10)), outcome())
        entered += [key for key, verdict in gate.pump(now_ms, fleet) if verdict == "admit"]
    assert 900 in entered
    assert now_ms >= 100_000.0  # it did wait: interactive came first
