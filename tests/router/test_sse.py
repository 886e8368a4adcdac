"""The stream meter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sse import StreamMeter

STREAM = (
    b': hello\r\n\r\ndata: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\r\n\r\n'
    b'data: {"choices": [{"delta": {"content": "\\"error\\""}, "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "b"}, "finish_reason": null}], "usage": null}\n\n'
    b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}}\n\ndata: [DONE]\n\n'
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_it_does_not_matter_how_the_bytes_are_split(cuts: list[int]) -> None:
    meter, at = StreamMeter(), 0
    for number, cut in enumerate([*sorted(cuts), len(STREAM)]):
        meter.feed(STREAM[at:cut], 100 + number)
        at = cut
    meter.close(999)
    assert (meter.content_chunks, meter.output_tokens, meter.prompt_tokens) == (2, 5, 9)
    assert (meter.done, meter.whole, meter.finish_reason, meter.failed) == (True, True, "length", False)
    assert meter.first_token_ms is not None
    assert meter.first_token_ms <= (meter.last_token_ms or 0)


@given(st.binary(max_size=400))
def test_no_bytes_break_it(data: bytes) -> None:
    meter = StreamMeter()
    for part in (b"data: ", data, b"\n\n", data):
        meter.feed(part, 1)
    meter.close(2)
    meter.take_body(data)
    assert meter.output_tokens >= 0


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b'{"error": {"code": 503, "message": "x"}}', 503),
        (b'{"error": {"code": "429"}}', 429),
        (b'{"error": {"code": "overloaded"}}', None),
        (b'{"error": "text"}', None),
        (b'{"error": {"code": 99999}}', None),
    ],
)
def test_errors_in_the_stream(payload: bytes, code: int | None) -> None:
    meter = StreamMeter()
    meter.feed(b"data: " + payload + b"\n\ndata: [DONE]\n\n", 1)
    assert (meter.failed, meter.error_code, meter.whole) == (True, code, False)


def test_an_end_mark_is_needed_and_an_abort_is_none() -> None:
    meter = StreamMeter()
    meter.feed(b'data: {"choices": [{"text": "a"}]}\n\n', 1)
    assert not meter.whole
    meter.feed(b'data: {"choices": [{"text": "", "finish_reason": "abort"}]}\n\n', 2)
    assert not meter.whole


LLAMACPP = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" ba"}}]}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"\xc3\xa4"}}]}\n\n'
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],'
    b'"timings":{"cache_n":44,"prompt_n":2,"prompt_ms":1.1,"predicted_n":3,"predicted_ms":0.9}}\n\n'
    b"data: [DONE]\n\n"
)


def test_llamacpps_first_chunk_is_no_token_and_its_own_count_is_taken() -> None:
    """As captured: a null content first, a character of two tokens in one chunk, timings without usage."""
    meter = StreamMeter()
    for number, event in enumerate(LLAMACPP.split(b"\n\n")[:-1]):
        meter.feed(event + b"\n\n", number)
        assert meter.content_chunks == min(number, 2)
    assert (meter.first_token_ms, meter.last_token_ms) == (1, 2)
    assert (meter.output_tokens, meter.prompt_tokens, meter.cached_tokens) == (3, 46, 44)
    assert meter.whole


def test_usage_beats_timings_and_odd_timings_are_ignored() -> None:
    meter = StreamMeter()
    meter.take_body(
        b'{"choices": [], "timings": {"cache_n": 1, "prompt_n": 1, "predicted_n": 1}, "usage": '
        b'{"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 7}}}'
    )
    assert (meter.output_tokens, meter.prompt_tokens, meter.cached_tokens) == (5, 9, 7)
    odd = StreamMeter()
    odd.take_body(b'{"choices": [], "timings": {"cache_n": -1, "prompt_n": "x", "predicted_n": null}}')
    assert (odd.usage_tokens, odd.prompt_tokens, odd.cached_tokens) == (None, None, None)
