"""Request bodies: what is accepted, and that anything else is a 400 or 404 in OpenAI's format."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines import InstanceSpec
from sim.engines.errors import ApiError
from sim.engines.requests import parse_chat, parse_completion

SPEC = InstanceSpec(instance="eu-0", model="m", max_model_len=100)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def chat(**fields: Any) -> bytes:
    return body(messages=[{"role": "user", "content": "one two"}], **fields)


def test_chat_counts_role_and_word_tokens_and_takes_content_parts() -> None:
    parsed = parse_chat(chat(model="m", max_tokens=5, ignore_eos=True, temperature=0.7, unknown=1), SPEC)
    assert parsed.generation.prompt_tokens == 4
    assert len(parsed.generation.words) == 5
    assert not parsed.stream
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    in_parts = parse_chat(body(messages=[{"role": "user", "content": parts}], max_tokens=5), SPEC)
    assert in_parts.generation.prompt_tokens == 4


def test_chat_without_max_tokens_may_fill_the_context() -> None:
    parsed = parse_chat(chat(ignore_eos=True), SPEC)
    assert parsed.generation.max_tokens == 96
    assert parse_chat(chat(max_completion_tokens=7, max_tokens=9), SPEC).generation.max_tokens == 7


@pytest.mark.parametrize("prompt", ["7 8 9", [7, 8, 9], ["7 8 9"], [[7, 8, 9]]])
def test_completion_takes_text_or_token_ids(prompt: Any) -> None:
    parsed = parse_completion(body(prompt=prompt, max_tokens=4, ignore_eos=True), SPEC)
    assert parsed.generation.prompt_tokens == 3
    assert parse_completion(body(prompt=prompt), SPEC).generation.max_tokens == 16


def test_usage_options() -> None:
    parsed = parse_chat(
        chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}), SPEC
    )
    assert parsed.include_usage
    assert parsed.continuous_usage
    only_continuous = parse_chat(chat(stream=True, stream_options={"continuous_usage_stats": True}), SPEC)
    assert not only_continuous.continuous_usage


@pytest.mark.parametrize(
    ("raw", "status", "says"),
    [
        (b'{"messages":', 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"[]", 400, "body"),
        (body(messages=[]), 400, "messages"),
        (body(messages="hi"), 400, "messages"),
        (chat(model="other"), 404, "`other` does not exist"),
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(max_tokens=97), 400, "maximum context length is 100"),
        (body(messages=[{"role": "user", "content": "w " * 200}]), 400, "maximum context length is 100"),
        (chat(n=2), 400, "n=2"),
        (chat(temperature=-1), 400, "temperature"),
        (chat(stream_options={"include_usage": True}), 400, "stream=True"),
        (body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "type 'text'"),
    ],
)
def test_wrong_chats_are_refused_with_a_reason(raw: bytes, status: int, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(raw, SPEC)
    assert caught.value.status == status
    assert says in caught.value.message
    assert caught.value.body()["error"]["code"] == status


@pytest.mark.parametrize("prompt", ["", "  ", [], ["a", "b"], [[]], [1, "a"], {"a": 1}, None])
def test_wrong_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion(body(prompt=prompt), SPEC)
    assert caught.value.status == 400


def test_errors_do_not_repeat_the_prompt() -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion(body(prompt={"secret-word": ["secret-word"]}), SPEC)
    assert "secret-word" not in json.dumps(caught.value.body())


def outcome(raw: bytes) -> list[int]:
    """Both parsers' answers to ``raw``: 200 with an output, or an error's status; nothing else may happen."""
    statuses = []
    for parse in (parse_chat, parse_completion):
        try:
            statuses.append(200 if parse(raw, SPEC).generation.words else 500)
        except ApiError as error:
            statuses.append(error.status)
    return statuses


@settings(deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_either_parse_or_give_an_api_error(raw: bytes) -> None:
    assert set(outcome(raw)) <= {200, 400, 404}


MESSAGES = st.lists(st.fixed_dictionaries({"role": JSON, "content": JSON}), max_size=2)
OPTIONAL = ("model", "max_tokens", "stream", "stream_options", "ignore_eos", "seed", "n", "temperature")


@settings(deadline=None)
@given(st.fixed_dictionaries({"prompt": JSON, "messages": MESSAGES}, optional=dict.fromkeys(OPTIONAL, JSON)))
def test_any_values_in_known_fields_either_parse_or_give_an_api_error(fields: dict[str, Any]) -> None:
    assert set(outcome(json.dumps(fields).encode())) <= {200, 400, 404}
