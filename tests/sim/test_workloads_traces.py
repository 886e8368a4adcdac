"""Trace readers: both formats, gzip or plain, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.workloads.traces import BrokenRow, TraceError, TraceRequest, load_trace

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:47.1805900,396,109\n"
)


def mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


def write(path: Path, text: str, *, gz: bool = False) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if gz else text.encode())
    return path


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl", "trace"])
def test_azure_rows_whatever_the_file_is_called(tmp_path: Path, name: str, gz: bool) -> None:
    trace = load_trace(write(tmp_path / name, AZURE, gz=gz))
    assert trace.requests == (TraceRequest(0.0, 374, 44), TraceRequest(500.0, 396, 109))
    assert (trace.report.format, trace.report.rows, trace.report.broken) == ("azure-csv", 2, ())


@pytest.mark.parametrize("gz", [False, True])
def test_mooncake_rows(tmp_path: Path, gz: bool) -> None:
    text = mooncake((100, 1025, 7, [0, 5, 9]), (40, 512, 1, [0]))
    trace = load_trace(write(tmp_path / "t.csv", text, gz=gz))
    assert trace.requests == (TraceRequest(0.0, 512, 1, (0,)), TraceRequest(60.0, 1025, 7, (0, 5, 9)))
    assert trace.report.format == "mooncake-jsonl"
    assert trace.report.jitter_ms == 0.0


def test_azure_columns_may_move_and_others_may_join(tmp_path: Path) -> None:
    text = (
        "\ufeffGeneratedTokens,Model,TIMESTAMP,ContextTokens\r\n"
        '\r\n9,"a, b",2024-05-10 00:00:00.25+00:00,30\r\n'
        "8,x,2024-05-10 02:00:00.75+02:00,31\r\n"
    )
    trace = load_trace(write(tmp_path / "t", text))
    assert trace.requests == (TraceRequest(0.0, 30, 9), TraceRequest(500.0, 31, 8))


def test_three_second_ticks_are_jittered_with_the_seed(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t", mooncake(*((tick, 10, 1, []) for tick in (0, 2999, 6000) for _ in range(50)))
    )
    trace = load_trace(path, seed=1)
    times_ms = [request.at_ms for request in trace.requests]
    assert trace.report.jitter_ms == 3000.0
    assert times_ms == sorted(times_ms)
    assert times_ms[0] == 0.0
    assert 6000.0 < times_ms[-1] <= 9000.0
    assert len(set(times_ms)) == 150
    assert trace == load_trace(path, seed=1)
    assert trace.requests != load_trace(path, seed=2).requests
    assert {request.at_ms for request in load_trace(path, jitter_ms=0).requests} == {0.0, 2999.0, 6000.0}


BROKEN = [
    (AZURE + "2023-11-16 18:15:48,12\n", 4, "2 columns"),
    (AZURE + "yesterday,12,3\n", 4, "not a date"),
    (AZURE + "2023-11-16 18:15:48,many,3\n", 4, "ContextTokens 'many'"),
    (AZURE + "2023-11-16 18:15:48,1_2,3\n", 4, "whole number"),
    (AZURE + "2023-11-16 18:15:48,12,0\n", 4, "GeneratedTokens is 0"),
    (AZURE + "2023-11-16 18:15:48,-5,3\n", 4, "ContextTokens is -5"),
    (AZURE + '2023-11-16 18:15:48,"12\n', 4, "columns"),
    (AZURE + "2023-11-16 18:15:48,99999999999,3\n", 4, "outside"),
    (mooncake((0, 600, 5, [0, 1])) + "{oops\n", 2, "not a JSON object"),
    (mooncake((0, 600, 5, [0, 1])) + "[1]\n", 2, "object"),
    (mooncake((0, 600, 5, [0, 1]), (0, 600, 5, [0, 1, 2])), 2, "at most 2 blocks"),
    (mooncake((0, 600, 5, [0, 1]), (-1, 600, 5, [])), 2, "timestamp"),
    (mooncake((0, 600, 5, [0, 1]), (1, 0, 5, [])), 2, "input_length"),
    (
        mooncake((0, 600, 5, [0, 1])) + '{"timestamp": 1, "input_length": 5, "output_length": 5}\n',
        2,
        "hash_ids",
    ),
    (
        mooncake((0, 6, 5, [])) + '{"timestamp":1,"input_length":"5","output_length":5,"hash_ids":[]}\n',
        2,
        "`str`",
    ),
    (mooncake((0, 6, 5, [])) + '{"timestamp":1e999,"input_length":5,"output_length":5,"hash_ids":[]}', 2, ""),
]


@pytest.mark.parametrize(("text", "line", "reason"), BROKEN)
def test_broken_rows_are_named_or_counted(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = write(tmp_path / "t", text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    message = str(caught.value)
    assert str(path) in message
    assert "1 broken row;" in message
    assert f"line {line}: " in message
    assert reason in message
    assert "\n" not in message
    trace = load_trace(path, skip_broken=True)
    assert [row.line for row in trace.report.broken] == [line]
    assert trace.report.rows == len(trace.requests) > 0


def test_every_broken_row_is_collected(tmp_path: Path) -> None:
    path = write(tmp_path / "t", AZURE + "x\n\n2023-11-16 18:15:49,1,1\ny,1,1\n")
    with pytest.raises(TraceError, match="2 broken rows; the first is line 4"):
        load_trace(path)
    report = load_trace(path, skip_broken=True).report
    assert report.broken == (
        BrokenRow(4, "1 columns where the header has 3"),
        BrokenRow(7, "TIMESTAMP 'y' is not a date and time"),
    )
    assert report.rows == 3


def test_unusable_files_get_one_sentence(tmp_path: Path) -> None:
    cases = {
        "no trace file": tmp_path / "absent",
        "is empty": write(tmp_path / "empty", ""),
        "is empty.": write(tmp_path / "blank", "\n \n", gz=True),
        "unknown format": write(tmp_path / "other", "num_prefill_tokens,num_decode_tokens\n1,2\n"),
        "unknown format:": write(tmp_path / "words", "hello\n"),
        "no usable row": write(tmp_path / "header", "TIMESTAMP,ContextTokens,GeneratedTokens\n"),
        "can't be read": tmp_path,
    }
    truncated = tmp_path / "cut.gz"
    truncated.write_bytes(gzip.compress(AZURE.encode() * 50)[:-20])
    cases["damaged gzip"] = truncated
    for words, path in cases.items():
        with pytest.raises(TraceError) as caught:
            load_trace(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="all 1 are broken, first line 2"):
        load_trace(write(tmp_path / "all", AZURE.splitlines()[0] + "\nx\n"), skip_broken=True)


@given(content=st.binary(max_size=400))
def test_no_content_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    for prefix in (b"", AZURE.encode(), mooncake((0, 5, 5, [])).encode(), b"\x1f\x8b"):
        path.write_bytes(prefix + content)
        try:
            trace = load_trace(path, skip_broken=True)
        except TraceError:
            continue
        else:
            assert trace.report.rows == len(trace.requests) > 0
            assert all(request.input_tokens >= 1 and request.output_tokens >= 1 for request in trace.requests)


@pytest.mark.parametrize(
    ("name", "rows", "mean_input", "mean_output", "jitter_ms"),
    [
        ("azure2023_conv.csv.gz", 19_366, 1_155, 211, 0.0),
        ("azure2023_code.csv.gz", 8_819, 2_048, 28, 0.0),
        ("mooncake_conversation_trace.jsonl.gz", 12_031, 12_035, 343, 3_000.0),
        ("mooncake_synthetic_trace.jsonl.gz", 3_993, 15_325, 149, 0.0),
    ],
)
def test_the_public_traces(name: str, rows: int, mean_input: int, mean_output: int, jitter_ms: float) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the public traces are not here")
    trace = load_trace(path)
    assert trace.report.rows == len(trace.requests) == rows
    assert trace.report.broken == ()
    assert trace.report.jitter_ms == jitter_ms
    assert sum(request.input_tokens for request in trace.requests) / rows == pytest.approx(
        mean_input, abs=0.6
    )
    assert sum(request.output_tokens for request in trace.requests) / rows == pytest.approx(
        mean_output, abs=0.6
    )
