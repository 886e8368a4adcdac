"""Predicted time to first token: agrees with the engine model, prefers what is cached, samples near-ties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.tokenpilot.predicted_ttft import Prospect, StepRates, choose, fits, predicted_ttft_ms
from sim.engine.step_model import attention_ktok2, params_named, step_ms

S2 = StepRates(11.0, 0.055, 0.028, 0.040, 1.25)
IDLE = Prospect(S2, 0.0, 0.0, 0.0, 0.0, 0.0, 600_000.0)


def test_one_prompt_alone_takes_what_the_engine_model_says() -> None:
    prompt, total, done = 20_000, 0.0, 0
    while done < prompt:
        chunk = min(8192, prompt - done)
        total += step_ms(
            params_named("S2"),
            decoding=0,
            resident_tokens=0,
            prefill_tokens=chunk,
            attention_work_ktok2=attention_ktok2(chunk, done),
        )
        done += chunk
    assert predicted_ttft_ms(IDLE, prompt) == pytest.approx(total)


@given(
    st.integers(1, 100_000),
    st.floats(0, 1e6),
    st.floats(0, 1e5),
    st.floats(0, 256),
    st.floats(0, 1e5),
)
def test_more_ahead_is_never_sooner_and_more_cached_never_later(
    prompt: int, pending: float, more: float, running: float, cached: float
) -> None:
    here = replace(IDLE, pending_tokens=pending, running=running)
    now_ms = predicted_ttft_ms(here, prompt)
    assert predicted_ttft_ms(replace(here, pending_tokens=pending + more), prompt) >= now_ms
    assert predicted_ttft_ms(replace(here, cached_tokens=cached), prompt) <= now_ms + 1e-6
    assert now_ms > 0


def test_a_cached_prefix_is_worth_a_wait_but_not_any() -> None:
    cached = replace(IDLE, pending_tokens=2_000.0, cached_tokens=9_000.0)
    assert choose([IDLE, cached], 10_000, seed=1) == 1
    assert choose([IDLE, replace(cached, pending_tokens=40_000.0)], 10_000, seed=1) == 0


def test_near_ties_are_spread_by_the_seed_and_clear_cases_are_not() -> None:
    chosen = {choose([IDLE] * 4, 5_000, seed) for seed in range(64)}
    assert chosen == {0, 1, 2, 3}
    busy = replace(IDLE, pending_tokens=50_000.0)
    assert {choose([busy, IDLE, busy], 5_000, seed) for seed in range(64)} == {1}


def test_a_full_memory_is_taken_only_where_all_are_full() -> None:
    full = replace(IDLE, resident_tokens=590_000.0)
    busy = replace(IDLE, pending_tokens=100_000.0)
    assert not fits(full, 10_000)
    assert choose([full, busy], 10_000, seed=0) == 1
    assert choose([full, replace(full, pending_tokens=100_000.0)], 10_000, seed=0) == 0


def test_an_unknown_state_is_neither_full_nor_refused() -> None:
    unknown = replace(IDLE, running=None, resident_tokens=None)
    assert fits(unknown, 10_000)
    assert predicted_ttft_ms(unknown, 1_000) == predicted_ttft_ms(IDLE, 1_000)
    with pytest.raises(ValueError, match="no instance to choose from"):
        choose([], 10, seed=0)
