"""Work units and estimates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.work import (
    INITIAL_OUTPUT_TOKENS,
    PREFILL_WEIGHT,
    OutputEstimator,
    PromptSizer,
    max_output_tokens,
    prompt_size,
    work_tokens,
)


def test_a_decode_token_is_one_and_prefill_is_what_the_step_model_says() -> None:
    assert work_tokens(0, 10) == 10
    assert work_tokens(1000, 0) == pytest.approx(1000 * PREFILL_WEIGHT)
    assert work_tokens(-5, -5) == 0
    batch, resident_k = 64, 64 * 1.26
    for a, b, c, d, e in ((11.0, 0.055, 0.028, 0.040, 1.25), (6.42, 0.01, 0.049, 0.018, 1.0)):
        decode_ms = (a + b * batch + c * resident_k) / batch
        prefill_ms = d + e * 4.0 / 2 / 1000
        assert prefill_ms / decode_ms <= PREFILL_WEIGHT + 0.005


def test_output_is_predicted_from_own_outcomes_and_capped_by_the_request() -> None:
    estimator = OutputEstimator()
    assert estimator.predict("a", None) == INITIAL_OUTPUT_TOKENS
    assert estimator.predict("a", 7) == 7
    for _ in range(500):
        estimator.observe("a", 20)
    assert estimator.predict("a", None) == pytest.approx(20, abs=1)
    assert estimator.predict("b", None) == INITIAL_OUTPUT_TOKENS


@given(st.lists(st.integers(0, 5000), min_size=1))
def test_the_estimate_stays_within_what_was_seen(lengths: list[int]) -> None:
    estimator = OutputEstimator(weight=0.2)
    for length in lengths:
        estimator.observe("a", length)
    low, high = min(*lengths, INITIAL_OUTPUT_TOKENS), max(*lengths, INITIAL_OUTPUT_TOKENS)
    assert low - 1e-6 <= estimator.predict("a", None) <= high + 1e-6


def test_bytes_per_token_are_learned_for_each_pool() -> None:
    sizer = PromptSizer()
    assert sizer.estimate("p@1", 400, 0) == 100
    for _ in range(50):
        sizer.observe("p@1", 6000, 0, 1000)
    assert sizer.estimate("p@1", 6000, 0) == pytest.approx(1000, rel=0.05)
    assert sizer.estimate("q@1", 400, 0) == 100
    assert sizer.estimate("q@1", 0, 0) == 1


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**7))))
def test_no_report_breaks_the_ratio(reports: list[tuple[int, int, int]]) -> None:
    sizer = PromptSizer()
    for text_bytes, token_ids, prompt_tokens in reports:
        sizer.observe("p@1", text_bytes, token_ids, prompt_tokens)
        assert sizer.bytes_per_token("p@1") > 0


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"prompt": "abcd"}, (4, 0)),
        ({"prompt": "äö"}, (4, 0)),
        ({"prompt": [1, 2, 3]}, (0, 3)),
        ({"prompt": ["ab", "c"]}, (3, 0)),
        ({"prompt": [[1, 2], [3]]}, (0, 3)),
        (
            {"messages": [{"content": "abc"}, {"content": [{"type": "text", "text": "de"}, {"image": 1}]}]},
            (5, 0),
        ),
        ({"messages": "x", "prompt": 5}, (0, 0)),
        ({"messages": [1, None, {"content": None}]}, (0, 0)),
    ],
)
def test_prompt_sizes(body: dict[str, Any], size: tuple[int, int]) -> None:
    assert prompt_size(body) == size


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["text", "content", "x"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["prompt", "messages", "max_tokens"]), json_values))
def test_any_json_has_a_size(body: dict[str, Any]) -> None:
    text_bytes, token_ids = prompt_size(body)
    assert 0 <= text_bytes <= len(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
    assert token_ids >= 0
    limit = max_output_tokens(body)
    assert limit is None or limit >= 0
