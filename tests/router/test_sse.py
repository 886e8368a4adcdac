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
