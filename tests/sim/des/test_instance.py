"""The fast instance equals plain stepping, token by token, and never breaks its limits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.des.events import EventQueue
from sim.des.instance import Instance
from sim.des.sequence import Sequence
from sim.engine import params_named
from tests.sim.des.engine_worlds import BLOCK, Arrival, Engine, Played, play_fast, play_plain

S2 = params_named("S2")
S4 = params_named("S4")


@st.composite
def scripts(draw: st.DrawFn, *, blocks: bool) -> list[Arrival]:
    """Bursts of requests that share prefixes; many are cancelled at odd moments."""
    script: list[Arrival] = []
    at_ms = 0.0
    for number in range(draw(st.integers(1, 14))):
        at_ms += draw(st.sampled_from([0.0, 3.7, 41.3, 160.9, 900.1])) + draw(st.floats(0.001, 20.0))
        prompt = draw(
            st.one_of(st.integers(1, 600), st.integers(1, 9_000), st.sampled_from([512, 1024, 2048]))
        )
        chain: tuple[int, ...] = ()
        if blocks:
            family = draw(st.integers(0, 2))
            shared = draw(st.integers(0, 6))
            ids = [family * 1_000 + i for i in range(shared)]
            ids += [10_000 + number * 100 + i for i in range(20)]
            chain = tuple(ids[: prompt // BLOCK])
        cancel = draw(st.none() | st.floats(0.01, 4_000.0))
        script.append(Arrival(at_ms, prompt, draw(st.integers(1, 250)), chain, cancel))
    return script


def same(fast: Played, plain: Played, script: list[Arrival]) -> None:
    assert fast.counters == plain.counters
    assert fast.finished == plain.finished
    assert fast.cancelled == plain.cancelled
    assert fast.used_units_after_cancels == plain.used_units_after_cancels
    assert fast.end_ms == pytest.approx(plain.end_ms, rel=1e-9)
    for number in plain.finished:
        assert fast.preemptions[number] == plain.preemptions[number]
        assert fast.cached_tokens[number] == plain.cached_tokens[number]
        assert len(fast.token_times_ms[number]) == script[number].output_tokens
    assert fast.token_times_ms.keys() == plain.token_times_ms.keys()
    for number, times_ms in plain.token_times_ms.items():
        assert sorted(fast.token_times_ms[number]) == pytest.approx(times_ms, rel=1e-9, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    script=scripts(blocks=True),
    kv_tokens=st.sampled_from([9_728, 12_288, 24_064, 100_352]),
    seqs=st.sampled_from([2, 5, 256]),
    budget=st.sampled_from([300, 2_048, 8_192]),
)
def test_equals_the_plain_scheduler_with_whole_blocks(
    script: list[Arrival], kv_tokens: int, seqs: int, budget: int
) -> None:
    engine = Engine(S2, kv_tokens, BLOCK, budget, seqs)
    same(play_fast(script, engine), play_plain(script, engine), script)


@settings(deadline=None, max_examples=60)
@given(script=scripts(blocks=False), kv_tokens=st.sampled_from([9_600, 12_000, 20_000, 100_000]))
def test_equals_the_plain_scheduler_with_small_units_under_memory_pressure(
    script: list[Arrival], kv_tokens: int
) -> None:
    engine = Engine(S4, kv_tokens, 16)
    same(play_fast(script, engine), play_plain(script, engine), script)


@settings(deadline=None, max_examples=60)
@given(
    script=scripts(blocks=True),
    kv_tokens=st.sampled_from([9_600, 12_000, 20_000, 100_000]),
    seqs=st.sampled_from([3, 256]),
)
def test_a_run_in_one_piece_equals_stepping(script: list[Arrival], kv_tokens: int, seqs: int) -> None:
    engine = Engine(S2, kv_tokens, 16, max_num_seqs=seqs)
    same(play_fast(script, engine), play_fast(script, engine, max_run_steps=1), script)


def busy_script(seed: int, requests: int) -> list[Arrival]:
    """A long one that runs out of memory again and again."""
    rng = random.Random(seed)
    script = []
    at_ms = 0.0
    for number in range(requests):
        at_ms += rng.expovariate(1 / 150.0)
        prompt = rng.choice([rng.randint(1, 800), rng.randint(1, 12_000), 512 * rng.randint(1, 10)])
        family = rng.randint(0, 9)
        ids = [family * 1_000 + i for i in range(rng.randint(0, 15))]
        ids += [100_000 + number * 100 + i for i in range(25)]
        cancel = rng.uniform(1.0, 8_000.0) if rng.random() < 0.3 else None
        script.append(Arrival(at_ms, prompt, rng.randint(1, 600), tuple(ids[: prompt // BLOCK]), cancel))
    return script


@pytest.mark.parametrize(("unit", "kv_tokens"), [(BLOCK, 40 * BLOCK), (16, 20_000)])
def test_long_busy_script_with_preemptions_evictions_and_hits(unit: int, kv_tokens: int) -> None:
    engine = Engine(S2, kv_tokens, unit, max_num_seqs=32)
    script = busy_script(7, 250)
    fast = play_fast(script, engine)
    same(fast, play_fast(script, engine, max_run_steps=1), script)
    if unit == BLOCK:
        same(fast, play_plain(script, engine), script)
    assert fast.counters["preemptions"] > 10
    assert fast.counters["hits"] > 10 * BLOCK


class _Deaf:
    def first_token(self, sequence: Sequence, now_ms: float) -> None:
        """Nobody asks."""

    def finished(self, sequence: Sequence, now_ms: float) -> None:
        """Nobody asks."""


def test_a_failure_loses_all_and_counts_what_was_generated() -> None:
    events = EventQueue()
    instance = Instance(S2, events, _Deaf(), kv_tokens=2_048)
    inside = Sequence(500, 1_000, (1,))
    instance.submit(inside, 0.0)
    events.run(until_ms=500.0)
    waiting = Sequence(1_000, 500)
    instance.submit(waiting, 500.0)
    lost: list[Sequence] = []
    events.at(510.0, lambda now_ms, _: lost.extend(instance.fail(now_ms)))
    events.run()
    assert lost == [inside, waiting]
    assert inside.generated_tokens == instance.generation_tokens > 10
    assert (instance.running, instance.waiting, instance.pool.cached_blocks) == (0, 0, 0)
    assert not instance.active
    again = Sequence(500, 3, (1,))
    instance.submit(again, events.now_ms)
    events.run()
    assert again.cached_tokens == 0
    assert instance.generation_tokens == inside.generated_tokens + 3


def test_readings_in_the_middle_of_a_run_are_those_of_stepping() -> None:
    def readings(max_run_steps: int | None) -> list[tuple[int, int, int, int]]:
        events = EventQueue()
        instance = Instance(S2, events, _Deaf(), kv_tokens=40_000, max_run_steps=max_run_steps)
        seen: list[tuple[int, int, int, int]] = []
        for number in range(6):
            sequence = Sequence(100 + 37 * number, 400)
            events.at(5.0 * number, lambda now_ms, s: instance.submit(s, now_ms), sequence)

        def look(now_ms: float, _: object) -> None:
            waiting, running, usage, tokens = instance.reading(now_ms)
            seen.append((waiting, running, round(usage * instance.pool.total_units), tokens))

        for at_ms in range(1, 5_000, 137):
            events.at(at_ms + 0.123, look)
        events.run()
        return seen

    assert readings(None) == readings(1)


def test_what_can_never_fit_is_refused() -> None:
    instance = Instance(S2, EventQueue(), _Deaf(), kv_tokens=1_024)
    with pytest.raises(ValueError, match="don't fit"):
        instance.submit(Sequence(1_000, 100), 0.0)
    with pytest.raises(ValueError, match="at least one prompt token"):
        instance.submit(Sequence(0, 100), 0.0)
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        Instance(S2, EventQueue(), _Deaf(), max_num_seqs=10_000)


def test_time_never_runs_backwards() -> None:
    events = EventQueue()
    events.at(10.0, lambda now_ms, _: None)
    events.run()
    with pytest.raises(ValueError, match="can't happen"):
        events.at(9.0, lambda now_ms, _: None)
    with pytest.raises(ValueError, match="can't happen"):
        events.at(float("nan"), lambda now_ms, _: None)
