"""The step model: its formula by hand, and the sign of every term."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import PARAM_SETS, frontend_ms, params_named, step_ms
from sim.engine.step_model import attention_ktok2


def test_formula_against_a_calculation_by_hand() -> None:
    # S2, 10 sequences with 50,000 tokens in all, one chunk of 2,000 tokens after 4,000.
    value = step_ms(
        params_named("S2"),
        decoding=10,
        resident_tokens=50_000,
        prefill_tokens=2_000,
        attention_work_ktok2=attention_ktok2(2_000, 4_000),
    )
    assert value == pytest.approx(11.0 + 0.055 * 10 + 0.028 * 50 + 0.040 * 2_000 + 1.25 * 2 * (4 + 1))


def test_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="S1, S2, S3, S4"):
        params_named("S9")


def test_frontend_time_lies_in_the_measured_band() -> None:
    assert 25 <= frontend_ms(0) <= 30
    assert 10.0 <= frontend_ms(1_000) - frontend_ms(0) <= 18.0


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(PARAM_SETS)),
    decoding=st.integers(0, 256),
    resident=st.integers(0, 500_000),
    prefill=st.integers(0, 8_192),
    context=st.integers(0, 100_000),
)
def test_more_work_never_takes_less_time(
    name: str, decoding: int, resident: int, prefill: int, context: int
) -> None:
    def duration(d: int, r: int, p: int, c: int) -> float:
        return step_ms(
            PARAM_SETS[name],
            decoding=d,
            resident_tokens=r,
            prefill_tokens=p,
            attention_work_ktok2=attention_ktok2(p, c),
        )

    base = duration(decoding, resident, prefill, context)
    assert base >= PARAM_SETS[name].base_ms
    assert duration(decoding + 1, resident, prefill, context) > base
    assert duration(decoding, resident + 1_000, prefill, context) > base
    assert duration(decoding, resident, prefill + 1, context) > base
    assert duration(decoding, resident, prefill, context + 1_000) >= base


@settings(deadline=None)
@given(first=st.integers(1, 4_000), second=st.integers(1, 4_000), context=st.integers(0, 50_000))
def test_attention_work_does_not_depend_on_the_cut_into_chunks(first: int, second: int, context: int) -> None:
    whole = attention_ktok2(first + second, context)
    cut = attention_ktok2(first, context) + attention_ktok2(second, context + first)
    assert cut == pytest.approx(whole)
