"""The scheduler: batching, chunking, pre-emption, cancels; and properties over random request mixes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import EngineRequest, EngineScheduler, FinishedRequest, params_named
from sim.engine.step_model import attention_ktok2, step_ms

S2 = params_named("S2")


def run_to_idle(engine: EngineScheduler, now_ms: float = 0.0) -> tuple[dict[str, int], float]:
    """Steps until nothing is left; tokens by request and the time at the end."""
    tokens: dict[str, int] = {}
    while (result := engine.step(now_ms)) is not None:
        now_ms += result.duration_ms
        for request_id in result.tokens:
            tokens[request_id] = tokens.get(request_id, 0) + 1
        assert engine.kv.used_blocks <= engine.kv.total_blocks
    return tokens, now_ms


def test_single_request_takes_the_time_of_the_formula() -> None:
    engine = EngineScheduler(S2)
    engine.submit(EngineRequest("r", 1_000, 3), now_ms=0.0)
    prefill = engine.step(0.0)
    assert prefill is not None
    expected = step_ms(
        S2,
        decoding=0,
        resident_tokens=0,
        prefill_tokens=1_000,
        attention_work_ktok2=attention_ktok2(1_000, 0),
    )
    assert prefill.duration_ms == pytest.approx(expected)
    assert prefill.tokens == ["r"]
    assert prefill.ttft_ms == [pytest.approx(expected)]
    assert prefill.iteration_tokens == 1_001
    decode = engine.step(expected)
    assert decode is not None
    assert decode.duration_ms == pytest.approx(
        step_ms(S2, decoding=1, resident_tokens=1_000, prefill_tokens=0, attention_work_ktok2=0.0)
    )
    assert list(decode.inter_token_ms.values()) == [1]
    last = engine.step(1_000.0)
    assert last is not None
    (done,) = last.finished
    assert (done.output_tokens, done.reason, done.preemptions) == (3, "length", 0)
    assert engine.step(2_000.0) is None
    assert engine.kv.used_blocks == 0


def test_long_prompt_is_prefilled_in_chunks_while_decodes_go_on() -> None:
    engine = EngineScheduler(S2, max_num_batched_tokens=512)
    engine.submit(EngineRequest("short", 100, 50), 0.0)
    assert engine.step(0.0) is not None
    engine.submit(EngineRequest("long", 2_000, 1), 20.0)
    steps = 0
    while engine.has("long"):
        result = engine.step(100.0 * (steps + 1))
        assert result is not None
        assert "short" in result.tokens
        steps += 1
    assert steps == 4  # ceil(2000 / (512 - 1))


def test_slots_limit_the_batch_and_the_queue_is_first_come_first_served() -> None:
    engine = EngineScheduler(S2, max_num_seqs=2)
    for name in "abcd":
        engine.submit(EngineRequest(name, 10, 2), 0.0)
    order: list[str] = []
    now_ms = 0.0
    while (result := engine.step(now_ms)) is not None:
        now_ms += result.duration_ms
        assert engine.running <= 2
        order += [done.request_id for done in result.finished]
    assert order == list("abcd")


def test_second_request_with_the_same_prefix_computes_only_the_rest() -> None:
    engine = EngineScheduler(S2)
    hashes = tuple(range(10))
    engine.submit(EngineRequest("one", 160, 1, hashes), 0.0)
    run_to_idle(engine)
    engine.submit(EngineRequest("two", 160, 1, hashes), 0.0)
    result = engine.step(0.0)
    assert result is not None
    # All ten blocks are resident, but the last token must be computed: nine are used.
    assert result.finished[0].cached_tokens == 144
    assert engine.counters.prefix_query_tokens == 320
    assert engine.counters.prefix_hit_tokens == 144
    assert engine.counters.cached_prompt_tokens == 144
    assert result.iteration_tokens == 16 + 1


def test_generated_blocks_are_reused_by_the_next_turn() -> None:
    engine = EngineScheduler(S2)
    history = tuple(range(100, 110))  # 80 prompt tokens, 80 output tokens
    engine.submit(EngineRequest("turn1", 80, 80, history), 0.0)
    run_to_idle(engine)
    engine.submit(EngineRequest("turn2", 200, 1, (*history, 500, 501)), 0.0)
    result = engine.step(0.0)
    assert result is not None
    # The last generated token is never fed back, so the tenth block was not complete.
    assert result.finished[0].cached_tokens == 144


def test_newest_sequence_is_preempted_and_completes_later() -> None:
    engine = EngineScheduler(S2, kv_tokens=160)
    engine.submit(EngineRequest("old", 60, 60), 0.0)
    engine.submit(EngineRequest("new", 60, 60), 0.0)
    finished = []
    now_ms = 0.0
    while (result := engine.step(now_ms)) is not None:
        now_ms += result.duration_ms
        finished += result.finished
    assert [(f.request_id, f.output_tokens) for f in finished] == [("old", 60), ("new", 60)]
    assert finished[0].preemptions == 0
    assert finished[1].preemptions >= 1
    assert engine.counters.preemptions == finished[1].preemptions
    assert engine.counters.prompt_tokens == 120  # recomputing counts in no prompt counter
    assert engine.counters.generation_tokens == 120
    assert engine.kv.used_blocks == 0


def test_preempted_sequence_returns_to_the_head_of_the_queue() -> None:
    engine = EngineScheduler(S2, kv_tokens=160, max_num_seqs=2)
    for name, prompt, output in (("old", 60, 60), ("new", 60, 60), ("late", 10, 10)):
        engine.submit(EngineRequest(name, prompt, output), 0.0)
    finished: dict[str, FinishedRequest] = {}
    now_ms = 0.0
    while (result := engine.step(now_ms)) is not None:
        now_ms += result.duration_ms
        finished |= {done.request_id: done for done in result.finished}
    assert finished["new"].preemptions >= 1
    # A block for the late one was free all the time, but it must not overtake.
    assert finished["late"].scheduled_ms >= finished["old"].finished_ms


def test_step_that_preempts_admits_nobody() -> None:
    engine = EngineScheduler(S2, kv_tokens=160, max_num_batched_tokens=64)
    engine.submit(EngineRequest("old", 60, 60), 0.0)
    engine.submit(EngineRequest("new", 60, 60), 0.0)
    now_ms = 0.0
    while engine.counters.preemptions == 0:
        duration_ms = engine.start_step(now_ms)
        assert duration_ms is not None
        now_ms += duration_ms
        if engine.counters.preemptions:
            assert (engine.running, engine.waiting) == (1, 1)  # though a chunk of it would fit
        engine.finish_step(now_ms)
    engine.step(now_ms)
    assert (engine.running, engine.waiting) == (2, 0)


def test_cancel_frees_at_once_queued_running_and_in_mid_step() -> None:
    engine = EngineScheduler(S2, max_num_seqs=1)
    engine.submit(EngineRequest("runs", 160, 10), 0.0)
    engine.submit(EngineRequest("waits", 160, 10), 0.0)
    assert engine.start_step(0.0) is not None
    assert engine.kv.used_blocks == 10
    assert engine.cancel("waits")
    assert engine.waiting == 0
    assert engine.cancel("runs")
    assert (engine.running, engine.kv.used_blocks) == (0, 0)
    result = engine.finish_step(50.0)
    assert result.tokens == []
    assert not engine.cancel("runs")
    assert engine.counters.cancelled == 2
    assert engine.counters.finished_length == 0


def test_misuse_is_refused_with_a_sentence() -> None:
    engine = EngineScheduler(S2, kv_tokens=160)
    engine.submit(EngineRequest("a", 10, 10), 0.0)
    with pytest.raises(ValueError, match="already in this engine"):
        engine.submit(EngineRequest("a", 10, 10), 0.0)
    with pytest.raises(ValueError, match="don't fit"):
        engine.submit(EngineRequest("b", 150, 11), 0.0)
    with pytest.raises(ValueError, match="at least one prompt token"):
        engine.submit(EngineRequest("c", 0, 1), 0.0)
    with pytest.raises(RuntimeError, match="no started step"):
        engine.finish_step(0.0)
    engine.start_step(0.0)
    with pytest.raises(RuntimeError, match="not been finished"):
        engine.start_step(0.0)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 120),  # prompt tokens
        st.integers(1, 60),  # output tokens
        st.integers(0, 3),  # prefix family; 0 has no hashes
        st.integers(0, 12),  # submitted before this step
        st.one_of(st.none(), st.integers(0, 20)),  # cancelled after so many more steps
        st.booleans(),  # ... in the middle of a step
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(
    requests=REQUESTS,
    blocks=st.integers(12, 60),
    budget=st.integers(8, 128),
    seqs=st.integers(1, 8),
)
def test_properties_over_random_mixes(
    requests: list[tuple[int, int, int, int, int | None, bool]], blocks: int, budget: int, seqs: int
) -> None:
    """KV within its limit, references zero when idle, tokens conserved, every step works, all complete."""
    engine = EngineScheduler(
        S2, kv_tokens=blocks * 16, block_tokens=16, max_num_batched_tokens=budget, max_num_seqs=seqs
    )
    tokens: dict[str, int] = {}
    finished: dict[str, int] = {}
    cancelled: set[str] = set()
    now_ms = 0.0
    step = 0
    last_submit = max((r[3] for r in requests), default=0)
    while True:
        cancel_in_mid_step: list[str] = []
        for index, (prompt, output, family, at_step, cancel_after, mid) in enumerate(requests):
            name = f"r{index}"
            if at_step == step:
                hashes = tuple(family * 1_000 + i for i in range((prompt + output) // 16)) if family else ()
                engine.submit(EngineRequest(name, prompt, output, hashes), now_ms)
            if cancel_after is not None and at_step + cancel_after == step and engine.has(name):
                if mid:
                    cancel_in_mid_step.append(name)
                else:
                    _cancel_checked(engine, name)
                    cancelled.add(name)
        duration_ms = engine.start_step(now_ms)
        for name in cancel_in_mid_step:
            _cancel_checked(engine, name)
            cancelled.add(name)
        assert engine.kv.used_blocks <= engine.kv.total_blocks
        assert engine.running <= seqs
        if duration_ms is None:
            assert engine.running == engine.waiting == 0  # work-conserving: never idle with work at hand
            if step >= last_submit:
                break
        else:
            assert duration_ms >= S2.base_ms
            now_ms += duration_ms
            result = engine.finish_step(now_ms)
            assert len(set(result.tokens)) == len(result.tokens)
            assert len(result.ttft_ms) + sum(result.inter_token_ms.values()) == len(result.tokens)
            for name in result.tokens:
                assert name not in cancelled
                assert name not in finished
                tokens[name] = tokens.get(name, 0) + 1
            for done in result.finished:
                finished[done.request_id] = done.preemptions
                assert done.arrival_ms <= done.scheduled_ms < done.first_token_ms <= done.finished_ms
        step += 1
        assert step < 20_000, "the engine makes no progress"
    for index, (_prompt, output, *_rest) in enumerate(requests):
        name = f"r{index}"
        assert (name in finished) != (name in cancelled)
        if name in finished:
            assert tokens[name] == output
        else:
            assert tokens.get(name, 0) <= output
    counters = engine.counters
    assert counters.generation_tokens == sum(tokens.values())
    assert counters.submitted == len(requests) == len(finished) + counters.cancelled
    assert counters.finished_length == len(finished)
    assert counters.preemptions >= sum(finished.values())
    assert counters.prefix_hit_tokens <= counters.prefix_query_tokens
    assert engine.kv.used_blocks == 0
    assert all(engine.kv.references(block) == 0 for block in range(blocks))


def _cancel_checked(engine: EngineScheduler, name: str) -> None:
    """A cancel that must not leave a running request's blocks behind."""
    used_before, present_before = engine.kv.used_blocks, engine.running + engine.waiting
    assert engine.cancel(name)
    assert engine.running + engine.waiting == present_before - 1
    assert engine.kv.used_blocks <= used_before
    if engine.running == 0:
        assert engine.kv.used_blocks == 0
