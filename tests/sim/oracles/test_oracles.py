"""Oracles: no policy gets below them, and small cases are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.des.clients import ClientOptions
from sim.des.replicas import ReplicaSpec
from sim.des.simulation import PolicySet
from sim.engine.step_model import frontend_ms, params_named
from sim.oracles.goodput import costs_ms, decode_ms_per_token, goodput_bound
from sim.oracles.pooled import pooled_bounds
from sim.oracles.requests import cached_tokens, lower_bounds
from sim.policies.balancers import BALANCERS
from tests.sim.des.runs import intents, simulation

S2 = params_named("S2")
PATIENT = ClientOptions(max_retries=0)


def patient(seed: int, count: int = 150, gap_ms: float = 120.0) -> list:
    """Intents that nobody gives up."""
    made = intents(seed, count, mean_gap_ms=gap_ms)
    return [replace(spec, deadline_ms=1e9, client_timeout_ms=1e9) for spec in made]


def test_one_request_alone_by_hand() -> None:
    spec = replace(intents(0, 1)[0], input_tokens=10_000, output_tokens=11, prefix_blocks=())
    ttft, tpot = lower_bounds([spec], S2)
    expected = frontend_ms(10_000) + 2 * 11.0 + 0.040 * 10_000 + 1.25 * 50.0
    assert ttft[0] == pytest.approx(expected)
    assert tpot[0] == pytest.approx(11.0 + 0.055 + 0.028 * 10.0055)


def test_the_infinite_cache_knows_all_earlier_blocks_but_not_the_last_token() -> None:
    first = replace(intents(0, 1)[0], input_tokens=1_024, prefix_blocks=(1, 2))
    again = replace(first, input_tokens=1_600, prefix_blocks=(1, 2, 3))
    assert cached_tokens([first, again, first]).tolist() == [0, 1_024, 512]


@pytest.mark.parametrize("policy", ["rr", "lpwl", "predicted_ttft"])
def test_no_policy_beats_a_request_alone_and_the_pool_does_better_than_all(policy: str) -> None:
    specs = patient(3)
    entry = BALANCERS[policy]
    run = simulation(
        specs,
        policies=PolicySet(policy, entry.factory({}), needs_prefix=entry.needs_prefix),
        replicas=[ReplicaSpec("a", "S2")] * 3,
        clients=PATIENT,
    )
    columns = run.run().columns
    alone, _ = lower_bounds(specs, S2)
    pooled, pooled_tpot = pooled_bounds(specs, S2, 3)
    assert (columns["ttft_ms"] >= alone - 1e-6).all()
    assert (pooled >= alone - 1e-9).all()
    assert pooled.mean() <= columns["ttft_ms"].mean()
    assert np.nanmean(pooled_tpot) <= np.nanmean(columns["tpot_ms"])


def test_an_idle_pool_is_as_fast_as_a_request_alone_and_a_crowded_one_is_not() -> None:
    calm = patient(5, gap_ms=60_000.0)
    alone, _ = lower_bounds(calm, S2)
    assert pooled_bounds(calm, S2, 2)[0] == pytest.approx(alone)
    crowd = patient(5, gap_ms=5.0)
    assert pooled_bounds(crowd, S2, 2)[0].mean() > 2 * lower_bounds(crowd, S2)[0].mean()


def test_decode_costs_least_in_the_largest_batch_that_keeps_the_level() -> None:
    slack = decode_ms_per_token(S2, 1_000.0, 1_000.0)
    tight = decode_ms_per_token(S2, 12.0, 1_000.0)
    assert slack == pytest.approx(11.0 / 256 + 0.055 + 0.028)
    assert tight == pytest.approx(11.0 / (1.0 / 0.083) + 0.083)
    assert decode_ms_per_token(S2, 10.0, 1_000.0) == np.inf


def test_goodput_is_all_under_light_load_and_bounded_by_engine_time_under_a_heavy_one() -> None:
    pytest.importorskip("highspy")
    calm = patient(7, count=40, gap_ms=10_000.0)
    possible = np.isfinite(costs_ms(calm, S2))
    tokens = np.array([spec.output_tokens for spec in calm])
    bound = goodput_bound(calm, S2, 2)
    assert bound.tokens == pytest.approx(tokens[possible].sum(), rel=1e-6)
    assert bound.intents == pytest.approx(possible.sum(), rel=1e-6)
    crowd = patient(7, count=400, gap_ms=1.0)
    tight = goodput_bound(crowd, S2, 1)
    assert tight.intents < 400
    assert goodput_bound(crowd, S2, 2).tokens > tight.tokens


@pytest.mark.parametrize("policy", ["lor", "predicted_ttft"])
def test_no_policy_has_more_good_tokens_than_the_program_allows(policy: str) -> None:
    pytest.importorskip("highspy")
    specs = patient(11, count=300, gap_ms=40.0)
    entry = BALANCERS[policy]
    run = simulation(
        specs,
        policies=PolicySet(policy, entry.factory({}), needs_prefix=entry.needs_prefix),
        replicas=[ReplicaSpec("a", "S2")] * 2,
        clients=PATIENT,
        warmup_ms=0.0,
    )
    columns = run.run().columns
    good = columns["good"] == 1
    bound = goodput_bound(specs, S2, 2)
    assert columns["output_tokens"][good].sum() <= bound.tokens * (1 + 1e-9)
    assert good.sum() <= bound.intents * (1 + 1e-9)
