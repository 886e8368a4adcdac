"""Each peer's formula on figures set by hand, and what holds for all of them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.policies.balancers import BALANCERS
from tests.sim.policies.seen import Seen, request

BLOCKS = tuple(range(1, 20))


def chosen(name: str, seen: Seen, **knobs: float) -> int:
    """The instance that a policy picks for a prompt of 19 full blocks."""
    policy = BALANCERS[name].factory(knobs)(0)
    answer = policy.choose(1_000.0, request(blocks=BLOCKS), seen.view, Random(1))
    assert isinstance(answer, int)
    return answer


def test_sglang_goes_for_the_prefix_unless_the_load_is_uneven_or_the_match_short() -> None:
    seen = Seen([0, 0, 0], [10, 20, 5]).cached(1, BLOCKS)
    assert chosen("sglang", seen) == 1
    assert chosen("sglang", Seen([0, 60, 0], [10, 20, 5]).cached(1, BLOCKS)) == 2  # 80 - 5 > 64, 80 > 7.5
    assert chosen("sglang", Seen([0, 0, 0], [10, 20, 5]).cached(1, BLOCKS[:4])) == 2  # 2,048 of 10,000


def test_gateway_weighs_queue_kv_and_prefix() -> None:
    # Prefix: 3 * 9728/10000 = 2.9 for instance 1, which has the longest queue (term 0); 2 and 0 tie on kv.
    seen = Seen([0, 8, 0], [1, 1, 1], [0.5, 0.5, 0.1]).cached(1, BLOCKS)
    assert chosen("gie", seen) == 1 or chosen("gie", seen) == 2
    scores = [2 + 2 * 0.5, 0 + 2 * 0.5 + 3 * 0.9728, 2 + 2 * 0.9]
    assert chosen("gie", seen) == int(np.argmax(scores))
    assert chosen("gie", seen, prefix_weight=0.5) == 2


def test_dynamo_counts_blocks_of_prefill_and_decode() -> None:
    seen = Seen([0, 0], [5, 5], [0.01, 0.02]).cached(1, BLOCKS)
    # 0: 19.5 + 11.7; 1: 19.5 - 19 + 23.4
    assert chosen("dynamo", seen) == 1
    assert chosen("dynamo", Seen([0, 0], [5, 5], [0.01, 0.09]).cached(1, BLOCKS)) == 0


def test_lmetric_and_lpwl_differ_by_the_batch() -> None:
    seen = Seen([0, 0], [1, 40]).pending(12_000.0, 8_000.0)
    assert chosen("lpwl", seen) == 1  # 22,000 against 18,000
    assert chosen("lmetric", seen) == 0  # times 2 against times 41


def test_mooncake_knows_that_attention_grows_with_the_square() -> None:
    seen = Seen([0, 0], [0, 0]).pending(10_000.0, 11_000.0)
    seen.signals.pending[1] = (500.0, 0.0)  # one long prompt against many short ones
    assert chosen("lpwl", seen) == 0
    assert chosen("mooncake", seen) == 1


def test_aibrix_takes_the_best_match_among_those_not_overloaded() -> None:
    assert chosen("aibrix", Seen([0] * 3, [4, 5, 6]).cached(1, BLOCKS)) == 1
    assert chosen("aibrix", Seen([0] * 3, [4, 14, 6]).cached(1, BLOCKS)) == 0  # 10 apart: least loaded
    crowded = Seen([0] * 4, [4, 4, 4, 8]).cached(3, BLOCKS)  # 8 is above 5 + 1.7
    assert chosen("aibrix", crowded) != 3


def test_smg_adds_what_was_sent_since_the_poll() -> None:
    seen = Seen([0, 0], [3, 3], [0.10, 0.11])
    assert chosen("smg", seen) == 0
    seen.signals.own_sent_tokens[0] = 20_000.0
    assert chosen("smg", seen) == 1


def test_prefix_hash_keeps_a_conversation_together_and_spreads_a_common_first_block() -> None:
    policy = BALANCERS["prefix_hash"].factory({})(0)
    view = Seen([0] * 8, [0] * 8).view
    picks = [
        {policy.choose(0.0, request(blocks=(0, n, n + 1, k)), view, Random(k)) for k in range(5)}
        for n in range(10, 200, 10)
    ]
    assert all(len(pick) == 1 for pick in picks)
    assert len(set.union(*picks)) > 4  # all share block 0
    with pytest.raises(ValueError, match="blocks must lie in 2 to 16"):
        BALANCERS["prefix_hash"].factory({"blocks": 1})


def test_ours_waits_for_no_prefix_that_costs_more_than_it_saves() -> None:
    assert chosen("predicted_ttft", Seen([0, 0], [1, 1]).cached(1, BLOCKS).pending(0.0, 3_000.0)) == 1
    assert chosen("predicted_ttft", Seen([0, 0], [1, 1]).cached(1, BLOCKS).pending(0.0, 30_000.0)) == 0


def test_a_wrong_rate_is_injected_by_instance_and_stays() -> None:
    right = BALANCERS["predicted_ttft"].make()
    wrong = BALANCERS["predicted_ttft"].make(rate_error=0.5)
    assert right._rates_of(3, "S2").prefill_ms == 0.040
    assert wrong._rates_of(3, "S2").prefill_ms != 0.040
    assert wrong._rates_of(3, "S2") == BALANCERS["predicted_ttft"].make(rate_error=0.5)._rates_of(3, "S2")


@pytest.mark.parametrize("name", BALANCERS)
@given(data=st.data())
def test_every_policy_answers_whatever_it_sees(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    figure = st.one_of(st.just(float("nan")), st.floats(0, 300))
    column = st.lists(figure, min_size=count, max_size=count)
    seen = Seen(data.draw(column), data.draw(column), [min(1.0, v / 300) for v in data.draw(column)])
    seen.cached(data.draw(st.integers(0, count - 1)), BLOCKS)
    policy = BALANCERS[name].factory({})(0)
    for number in range(3):
        view = request(number, blocks=BLOCKS[: data.draw(st.integers(0, 19))])
        answer = policy.choose(1_000.0, view, seen.view, Random(number))
        assert isinstance(answer, int)
        assert 0 <= answer < count
