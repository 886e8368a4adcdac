"""The stream reader: the same result however the bytes are split, and only known shapes count as answers."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sim.loadgen.sse import MAX_EVENT_BYTES, CompletionStream, stream_error


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> str:
    delta = {"role": "assistant", "content": ""} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "c", "choices": [choice], "usage": None, **more})


USAGE = json.dumps(
    {"choices": [], "usage": {"completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 512}}}
)
ANSWER = [
    chunk(),
    *(chunk(text) for text in ("a", "b", '"error"', "d")),
    chunk("e", "length"),
    USAGE,
    "[DONE]",
]


def state(stream: CompletionStream) -> tuple[object, ...]:
    return (
        stream.tokens,
        stream.content_chunks,
        stream.cached_tokens,
        stream.finish_reason,
        stream.error,
        stream.done,
        stream.malformed,
        stream.finished,
        stream.first_token_ms is not None,
    )


def read(body: bytes, cuts: list[int] | None = None) -> CompletionStream:
    stream = CompletionStream()
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts or [])})
    for number, (start, end) in enumerate(pairwise(edges)):
        stream.feed(body[start:end], float(number))
    stream.close(1e6)
    return stream


def body_of(payloads: list[str], newline: str = "\n", noise: str = "") -> bytes:
    return "".join(f"{noise}data: {payload}{newline}{newline}" for payload in payloads).encode()


def test_a_whole_answer() -> None:
    stream = CompletionStream()
    for number, payload in enumerate(ANSWER):
        stream.feed(body_of([payload]), 10.0 * number)
    stream.close(999.0)
    assert (stream.first_token_ms, stream.last_token_ms) == (10.0, 50.0)
    assert (stream.content_chunks, stream.tokens, stream.cached_tokens) == (5, 5, 512)
    assert (stream.finish_reason, stream.done, stream.finished, stream.malformed) == ("length", True, True, 0)


noises = st.sampled_from(["", ": ping\n\n", "event: message\nid: 3\n", ":\nretry: 10\n"])
streams = st.sampled_from(
    [
        ANSWER,
        ANSWER[:3],
        [chunk(), json.dumps({"error": {"code": 503, "message": "full"}}), "[DONE]"],
        [chunk("a"), "{broken", chunk("b"), "7", chunk("c", "stop"), "[DONE]", chunk("late")],
        [json.dumps({"choices": [{"text": "x", "finish_reason": None}]}), "[DONE]"],
    ]
)


@given(
    payloads=streams,
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    noise=noises,
    cuts=st.lists(st.integers(0)),
)
def test_splits_and_line_ends_change_nothing(
    payloads: list[str], newline: str, noise: str, cuts: list[int]
) -> None:
    whole = state(read(body_of(payloads)))
    assert state(read(body_of(payloads, newline, noise.replace("\n", newline)), cuts)) == whole


@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([b"data:", b"\r", b"\n\n", b'{"choices":[{"delta":3}]}'])
    )
)
def test_no_bytes_crash_the_reader(pieces: list[bytes]) -> None:
    stream = CompletionStream()
    for piece in pieces:
        stream.feed(piece, 0.0)
    stream.close(0.0)
    assert stream.tokens >= 0


def test_every_byte_alone_gives_the_same() -> None:
    body = body_of(ANSWER, "\r\n")
    assert state(read(body, list(range(len(body))))) == state(read(body))


def test_errors_inside_the_stream() -> None:
    shed = read(body_of([chunk(), json.dumps({"error": {"code": 503, "message": "full"}}), "[DONE]"]))
    assert shed.error is not None
    assert (shed.error.code, shed.error.message, shed.finished, shed.done) == (503, "full", False, True)
    late = read(
        body_of([chunk("a"), chunk("b"), '{"error":{"message":"engine died","code":"500"}}', "[DONE]"])
    )
    assert late.error is not None
    assert (late.error.code, late.content_chunks, late.finished) == (500, 2, False)
    named = read(b'event: error\ndata: {"message": "no"}\n\n')
    assert named.error is not None
    assert named.error.message == "no"
    assert stream_error("text").code is None
    assert len(stream_error({"message": "x" * 900, "code": True}).message) == 200


def test_what_is_no_whole_answer() -> None:
    assert not read(body_of(ANSWER[:4])).finished
    assert not read(body_of([chunk("a"), chunk("b", "abort"), "[DONE]"])).finished
    assert read(b"data: " + chunk("a", "stop").encode()).finished  # no last newline
    assert read(body_of([chunk(), "[DONE]"])).first_token_ms is None
    endless = CompletionStream()
    endless.feed(b"data: " + b"x" * (MAX_EVENT_BYTES + 1), 0.0)
    assert endless.error is not None


def test_usage_outranks_the_count_of_chunks() -> None:
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": 40, "prompt_tokens_details": None}})
    stream = read(body_of([chunk("a"), chunk("b"), usage, "[DONE]"]))
    assert (stream.content_chunks, stream.tokens, stream.cached_tokens) == (2, 40, None)
    odd = read(body_of([chunk("a"), chunk("b"), '{"choices":[],"usage":{"completion_tokens":-3}}', "[DONE]"]))
    assert odd.tokens == 2


def test_a_data_field_over_several_lines() -> None:
    assert read(b'data: {"choices":\ndata: [{"text": "a"}]}\n\ndata:[DONE]\n\n').content_chunks == 1
