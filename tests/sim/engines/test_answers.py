"""Streamed bytes against a real server's: the same fields in the same order, chunk by chunk."""

import json
import re
from pathlib import Path
from typing import Any

from sim.engines import InstanceSpec
from sim.engines.answers import SseWriter, whole_answer
from sim.engines.errors import engine_died
from sim.engines.requests import ParsedRequest, parse_chat, parse_completion

FIXTURES = Path(__file__).parents[2] / "fixtures" / "vllm-0.32.0"
SPEC = InstanceSpec(instance="eu-0", model="tiny")


def events(raw: bytes) -> list[str]:
    """The data of each event, which ends with an empty line."""
    text = raw.decode()
    assert text.endswith("\n\n")
    parts = text[:-2].split("\n\n")
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def shape(event: str) -> str:
    """An event with its values masked: words, numbers, ids. Layout, keys, order and nulls stay."""
    if event == "[DONE]":
        return event
    masked = re.sub(r'"(id|model|content|text|system_fingerprint)":"[^"]+"', r'"\1":"?"', event)
    return re.sub(r":\d+", ":0", masked)


def parsed_chat(tokens: int, **fields: Any) -> ParsedRequest:
    body = {
        "messages": [{"role": "user", "content": "a b"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    return parse_chat(json.dumps(body | fields).encode(), SPEC)


def test_chat_stream_has_the_shape_of_the_captured_one() -> None:
    parsed = parsed_chat(3, stream_options={"include_usage": True})
    writer = SseWriter(parsed, "chatcmpl-1", "tiny", 1)
    ours = events(writer.chunks(0, 3) + writer.closing())
    captured = events((FIXTURES / "sse_chat.txt").read_bytes())
    assert [shape(e) for e in ours] == [shape(e) for e in captured]


def test_cutting_the_stream_into_writes_changes_no_byte() -> None:
    parsed = parsed_chat(7)
    writer = SseWriter(parsed, "chatcmpl-1", "tiny", 1)
    pieces = writer.chunks(0, 1) + writer.chunks(1, 4) + writer.chunks(4, 4) + writer.chunks(4, 7)
    assert pieces == writer.chunks(0, 7)
    chunks = [json.loads(e) for e in events(pieces)]
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks)
    assert text.split() == list(parsed.generation.words)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 7 + ["length"]
    assert writer.closing() == b"data: [DONE]\n\n"


def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    writer = SseWriter(parsed_chat(3, stream_options=options), "chatcmpl-1", "tiny", 1)
    chunks = [json.loads(e) for e in events(writer.chunks(0, 3) + writer.closing())[:-1]]
    assert [c["usage"]["completion_tokens"] for c in chunks] == [0, 1, 2, 3, 3]
    assert {c["usage"]["total_tokens"] - c["usage"]["completion_tokens"] for c in chunks} == {4}


def test_completion_stream_and_whole_answer_carry_the_same_text() -> None:
    body = {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True, "stream": True}
    parsed = parse_completion(json.dumps(body).encode(), SPEC)
    chunks = [json.loads(e) for e in events(SseWriter(parsed, "cmpl-1", "tiny", 1).chunks(0, 4))]
    assert all(c["object"] == "text_completion" and c["usage"] is None for c in chunks)
    whole = whole_answer(parsed, "cmpl-1", "tiny", 1)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    assert whole["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": None,
    }


def test_model_names_are_escaped() -> None:
    writer = SseWriter(parsed_chat(1), 'id"', 'mo"del', 1)
    assert json.loads(events(writer.chunks(0, 1))[0])["model"] == 'mo"del'


def test_engine_death_event_has_the_shape_of_the_captured_one() -> None:
    captured = json.loads(events((FIXTURES / "sse_engine_died.txt").read_bytes())[0])
    ours = json.loads(events(engine_died().sse())[0])
    assert list(ours["error"]) == list(captured["error"])
    assert {k: v for k, v in ours["error"].items() if k != "message"} == {
        k: v for k, v in captured["error"].items() if k != "message"
    }
