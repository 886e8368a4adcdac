"""The generator, the plan and the prompts: published shapes, exact rates, honest prefixes, one seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.workloads.classes import DEFAULT_CLASSES, ClassProfile
from sim.workloads.generator import COMMON_BLOCK, GeneratorShape, generate
from sim.workloads.plan import PlanShape, plan_from_generator, plan_from_trace
from sim.workloads.prompts import WORDS, block_text, prompt_text
from sim.workloads.traces import BLOCK_TOKENS, TraceRequest

TRACE = tuple(TraceRequest(float(at), 600, 5, (0, 1 + at)) for at in (0, 10, 20, 90))


def test_generated_lengths_follow_the_published_means_and_shares() -> None:
    requests = generate(rate_rps=20.0, duration_ms=900_000.0, seed=3)
    assert len(requests) == pytest.approx(18_000, rel=0.03)
    published = {"interactive": (1_155, 211, 0.5), "long": (2_048, 28, 0.3), "batch": (2_588, 291, 0.2)}
    for name, (mean_input, mean_output, share) in published.items():
        members = [request for request in requests if request.service_class == name]
        assert len(members) / len(requests) == pytest.approx(share, abs=0.02)
        assert sum(m.input_tokens for m in members) / len(members) == pytest.approx(mean_input, rel=0.06)
        assert sum(m.output_tokens for m in members) / len(members) == pytest.approx(mean_output, rel=0.12)


def test_a_turn_extends_the_one_before_it() -> None:
    requests = generate(rate_rps=10.0, duration_ms=120_000.0, seed=4)
    sessions = defaultdict(list)
    for request in requests:
        sessions[request.session].append(request)
    assert max(map(len, sessions.values())) > 2
    owner: dict[int, str] = {}
    for session, turns in sessions.items():
        assert [turn.turn for turn in turns] == list(range(len(turns)))
        assert len({turn.tenant for turn in turns}) == 1
        for before, after in pairwise(turns):
            assert after.input_tokens >= before.input_tokens
            assert after.prefix_blocks[: len(before.prefix_blocks)] == before.prefix_blocks
        for turn in turns:
            assert len(turn.prefix_blocks) == turn.input_tokens // BLOCK_TOKENS
            assert turn.prefix_blocks[:1] in ((), (COMMON_BLOCK,))
            for block in turn.prefix_blocks[1:]:
                assert owner.setdefault(block, session) == session


def test_modulation_moves_the_rate_but_not_the_mean() -> None:
    only = (ClassProfile("batch", 1.0, 1.0, 1.0, 1.0, 1.0),)
    shape = GeneratorShape(modulation=1.0, modulation_period_ms=1_000.0)
    requests = generate(rate_rps=500.0, duration_ms=10_000.0, seed=5, classes=only, shape=shape)
    per_second = Counter(int(request.at_ms // 1_000) for request in requests)
    assert len(per_second) == 5  # every other second is silent
    assert len({second % 2 for second in per_second}) == 1
    assert len(requests) == pytest.approx(5_000, rel=0.06)


def test_one_seed_one_workload() -> None:
    assert generate(rate_rps=5, duration_ms=9_000, seed=1) == generate(rate_rps=5, duration_ms=9_000, seed=1)
    assert generate(rate_rps=5, duration_ms=9_000, seed=1) != generate(rate_rps=5, duration_ms=9_000, seed=2)
    first = plan_from_generator(rate_rps=5, duration_ms=9_000, seed=1)
    assert first == plan_from_generator(rate_rps=5, duration_ms=9_000, seed=1)


def test_impossible_arguments_get_a_sentence() -> None:
    for rate_rps, duration_ms in (
        (0, 1e3),
        (-1, 1e3),
        (float("nan"), 1e3),
        (1, 0),
        (1, float("inf")),
        (1e9, 1e9),
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            plan_from_generator(rate_rps=rate_rps, duration_ms=duration_ms)
        with pytest.raises(ValueError, match=r"\.$"):
            plan_from_trace(TRACE, rate_rps=rate_rps, duration_ms=duration_ms)
    with pytest.raises(ValueError, match="at least one request"):
        plan_from_trace(())
    with pytest.raises(ValueError, match="no lengths for class 'gold'"):
        generate(rate_rps=1, duration_ms=1e3, seed=0, classes=(ClassProfile("gold", 1, 1, 1, 1, 1),))
    with pytest.raises(ValueError, match="residency shares"):
        plan_from_trace(TRACE, shape=PlanShape(residency_shares={"eu": 0.7, "us": 0.7}))
    with pytest.raises(ValueError, match="entry shares"):
        plan_from_trace(TRACE, shape=PlanShape(entry_shares={"a": 0.0}))


def test_a_trace_keeps_its_own_time_without_a_rate() -> None:
    assert [spec.at_ms for spec in plan_from_trace(TRACE)] == [0, 10, 20, 90]
    assert [spec.at_ms for spec in plan_from_trace(TRACE, duration_ms=20.5)] == [0, 10, 20]
    looped = plan_from_trace(TRACE, duration_ms=145.0)  # the loop starts a mean gap (30 ms) after the end
    assert [spec.at_ms for spec in looped] == [0, 10, 20, 90, 120, 130, 140]


def test_a_rate_rescales_exactly_what_is_played() -> None:
    specs = plan_from_trace(TRACE, rate_rps=2.0, duration_ms=1_500.0)  # rows 0, 10, 20; the next is at 90
    assert [spec.at_ms for spec in specs] == pytest.approx([0.0, 1_500 * 10 / 90, 1_500 * 20 / 90])
    whole = plan_from_trace(TRACE, rate_rps=1.0)
    assert [spec.at_ms for spec in whole] == pytest.approx([0.0, 4_000 / 12, 8_000 / 12, 3_000.0])
    untimed = plan_from_trace([TraceRequest(0.0, 5, 5)] * 3, rate_rps=1.0, duration_ms=2_000.0)
    assert [spec.at_ms for spec in untimed] == [0.0, 1_000.0]
    single = plan_from_trace([TraceRequest(7.0, 5, 5)], rate_rps=10.0, duration_ms=1_000.0)
    assert [spec.at_ms for spec in single] == pytest.approx([100.0 * index for index in range(10)])


def test_a_repetition_fakes_no_cache_hits() -> None:
    specs = plan_from_trace(TRACE, duration_ms=240.0)
    blocks = [spec.prefix_blocks for spec in specs]
    assert blocks[:4] == [(0,)] * 4  # the partial second block is no full block
    deep = plan_from_trace(
        [TraceRequest(0.0, 1_024, 1, (0, 1)), TraceRequest(10.0, 1_024, 1, (0, 2))], duration_ms=40
    )
    assert [spec.prefix_blocks for spec in deep] == [(0, 1), (0, 2), (0, 4), (0, 5)]


def test_synthesised_parts_follow_their_shares_and_stay_with_a_conversation() -> None:
    rows = [
        TraceRequest(float(index), 2_000, 5, (0, 1 + index // 2, 10_000 + index)) for index in range(8_000)
    ]
    shape = PlanShape(
        entry_shares={"a": 3, "b": 1}, residency_shares={"eu": 0.1}, tenant_shares={"x": 1, "y": 1}
    )
    specs = plan_from_trace(rows, seed=9, shape=shape, run_id="run7")
    count = len(specs)
    assert Counter(spec.entry_region for spec in specs)["a"] / count == pytest.approx(0.75, abs=0.03)
    assert Counter(spec.residency for spec in specs)["eu"] / count == pytest.approx(0.10, abs=0.03)
    for profile in DEFAULT_CLASSES:
        members = [spec for spec in specs if spec.service_class == profile.name]
        assert len(members) / count == pytest.approx(profile.share, abs=0.03)
        assert {(m.ttft_slo_ms, m.tpot_slo_ms, m.client_timeout_ms, m.deadline_ms) for m in members} == {
            (profile.ttft_slo_ms, profile.tpot_slo_ms, profile.client_timeout_ms, profile.deadline_ms)
        }
    for first, second in zip(specs[::2], specs[1::2], strict=True):
        assert (first.tenant, first.entry_region, first.residency, first.service_class) == (
            second.tenant,
            second.entry_region,
            second.residency,
            second.service_class,
        )
    assert len({spec.intent_id for spec in specs}) == count
    assert specs[12].intent_id == "run7-000012"


@given(
    rate_rps=st.floats(0.5, 50),
    duration_ms=st.floats(100, 5_000),
    gaps_ms=st.lists(st.floats(0, 1_000), min_size=1, max_size=30),
)
def test_the_mean_rate_is_the_rate(rate_rps: float, duration_ms: float, gaps_ms: list[float]) -> None:
    times_ms = [sum(gaps_ms[:index]) for index in range(len(gaps_ms))]
    specs = plan_from_trace(
        [TraceRequest(at_ms, 10, 1) for at_ms in times_ms], rate_rps=rate_rps, duration_ms=duration_ms
    )
    assert len(specs) == max(1, round(rate_rps * duration_ms / 1_000))
    arrivals = [spec.at_ms for spec in specs]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] <= len(specs) * 1_000 / rate_rps * (1 + 1e-9)


@settings(max_examples=40)
@given(
    tokens=st.integers(1, 3_000),
    blocks=st.lists(st.integers(0, 2**62), max_size=8),
    unique=st.text(max_size=9),
)
def test_a_prompt_is_its_blocks_and_then_its_own(tokens: int, blocks: list[int], unique: str) -> None:
    words = prompt_text(tokens, blocks, unique).split()
    assert len(words) == tokens
    assert set(words) <= set(WORDS)
    for index, block in enumerate(blocks[: tokens // BLOCK_TOKENS]):
        assert words[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS] == block_text(block).split()
    assert prompt_text(tokens, blocks, unique) == " ".join(words)


def test_prompts_share_only_what_their_blocks_share() -> None:
    assert len(set(WORDS)) == 256
    one, two = prompt_text(1_500, (7, 8), "one").split(), prompt_text(1_500, (7, 8), "two").split()
    assert one[:1_024] == two[:1_024]
    assert one[1_024:] != two[1_024:]
    assert prompt_text(600, (), "one").split()[:512] != prompt_text(600, (), "two").split()[:512]
    assert block_text(1) != block_text(2)
    with pytest.raises(ValueError, match="at least 1 token"):
        prompt_text(0, (), "x")
