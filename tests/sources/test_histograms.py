"""Latency histograms: read whole or not at all, whatever their labels; a known layout reads as a new one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.engines import histograms, reader
from sources.engines.histograms import Totals
from sources.engines.mapping import EVERY, Mapping, mapping_of, parse_mapping
from sources.engines.reader import EngineSample, read_engine

VLLM = mapping_of("vllm")
Capture = Callable[[str], bytes]

# Count and sum in ms, read off the captures by hand.
EXPECTED: dict[str, dict[str, tuple[int, float | None]]] = {
    "under_load": {"ttft": (8, 340.9688472747803), "e2e": (0, 0.0)},
    "after": {"ttft": (324, 149599.6289253235), "itl": (89_734, 1433255.7560370388), "e2e": (322, None)},
    "restart": {"ttft": (0, 0.0), "itl": (0, 0.0)},
}


def _read(body: bytes, mapping: Mapping = VLLM) -> EngineSample:
    (sample,) = read_engine(body, mapping, latencies=True)
    return sample


@pytest.mark.parametrize("name", EXPECTED)
def test_the_captures_latencies(capture: Capture, name: str) -> None:
    sample = _read(capture(name))
    assert sample.problems == []
    found: dict[str, Totals] = {one.name: one for one in sample.latencies}
    assert set(found) == {"ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"}
    for latency, (count, sum_ms) in EXPECTED[name].items():
        assert sum(found[latency].counts) == count
        if sum_ms is not None:
            assert found[latency].sum_ms == pytest.approx(sum_ms)
    assert found["ttft"].bounds_ms[:3] == (1.0, 5.0, 10.0)
    assert len(found["ttft"].counts) == len(found["ttft"].bounds_ms) + 1
    assert found["ttft"].metric == "vllm:time_to_first_token_seconds"


def test_without_asking_none_are_read(capture: Capture) -> None:
    (sample,) = read_engine(capture("after"), VLLM)
    assert sample.latencies == []


BUCKET = 'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.06",model_name="tiny"} '
COUNT = 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} '
SUM = 'vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} '
TYPE = "# TYPE vllm:time_to_first_token_seconds histogram\n"
INF = 'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 8.0\n'


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (TYPE, "", "wrong_type"),
        (TYPE, TYPE.replace("histogram", "summary"), "wrong_type"),
        (TYPE, TYPE + TYPE.replace("histogram", "gauge"), "wrong_type"),
        (BUCKET + "8.0", BUCKET + "9.0", "out_of_bounds"),
        (BUCKET + "8.0", BUCKET + "NaN", "not_finite"),
        (BUCKET + "8.0", BUCKET + "7.5", "out_of_bounds"),
        (BUCKET + "8.0", BUCKET + "eight", "unparseable"),
        (BUCKET + "8.0", BUCKET + "8.0 1795980784940", "unparseable"),
        (BUCKET + "8.0", f"{BUCKET}8.0\n{BUCKET}8.0", "duplicate"),
        (BUCKET + "8.0", BUCKET.replace("0.06", "wide") + "8.0", "unparseable"),
        (BUCKET + "8.0", BUCKET.replace('le="0.06"', 'le="0.06') + "8.0", "unparseable"),
        (INF, "", "unparseable"),
        (COUNT + "8.0", COUNT + "7.0", "out_of_bounds"),
        (COUNT + "8.0", "", "unparseable"),
        (SUM + "0.3", SUM + "-0.3", "out_of_bounds"),
        (SUM, f"{SUM}1.0\n{SUM}", "duplicate"),
    ],
)
def test_a_histogram_that_can_not_be_believed_is_unknown(
    capture: Capture, old: str, new: str, kind: str
) -> None:
    text = capture("under_load").decode()
    assert old in text
    for _ in range(2):  # of a new layout, and of a known one
        sample = _read(text.replace(old, new).encode())
        assert "ttft" not in {one.name for one in sample.latencies}
        assert [(problem.kind, problem.reading) for problem in sample.problems] == [(kind, "ttft")]
        assert len(sample.latencies) == 6


def test_a_histogram_that_is_gone_is_drift_but_an_excused_one_is_not(capture: Capture) -> None:
    sample = _read(capture("after").replace(b"vllm:e2e_request_latency_seconds", b"vllm:request_seconds"))
    assert [(p.kind, p.reading, p.drift) for p in sample.problems] == [("missing", "e2e", True)]
    old = capture("after").replace(b"vllm:inter_token_latency_seconds", b"vllm:time_per_output_token_seconds")
    sample = _read(old.replace(b"vllm:request_time_per_output_token_seconds", b"vllm:other"))
    assert sample.problems == []
    assert {one.name: one.metric for one in sample.latencies}["itl"] == "vllm:time_per_output_token_seconds"


def test_a_page_cut_off_inside_a_histogram_gives_no_wrong_total(capture: Capture) -> None:
    body = capture("after")
    whole = {one.name: one for one in _read(body).latencies}
    start = body.index(b"vllm:e2e_request_latency_seconds_bucket")
    for end in range(start, start + 2500, 37):
        sample = _read(body[:end])
        assert all(one == whole[one.name] for one in sample.latencies)


def _page(rows: list[tuple[str, list[int]]]) -> bytes:
    lines = ["# TYPE x:running gauge", *(f"x:running{{{labels}}} 1" for labels, _ in rows)]
    lines.append("# TYPE x:ttft_seconds histogram")
    for labels, counts in rows:
        total = 0
        for bound, count in zip(("0.1", "1", "+Inf"), counts, strict=True):
            total += count
            lines.append(f'x:ttft_seconds_bucket{{{labels},le="{bound}"}} {total}')
        lines += [f"x:ttft_seconds_sum{{{labels}}} {total / 2}", f"x:ttft_seconds_count{{{labels}}} {total}"]
    return ("\n".join(lines) + "\n").encode()


def _mapping(more: str) -> Mapping:
    silent = {name: "not told" for name in EVERY if name not in ("requests_running", "ttft")}
    return parse_mapping(
        "engine: x\nabout: x\nversions: all\nevidence: capture\nrank_label: rank\nmodel_label: model\n"
        "process_started_at_ms: []\ncounters: {}\n"
        f"gauges: {{requests_running: [{{metric: 'x:running', type: gauge{more}}}]}}\n"
        f"latencies: {{ttft: [{{metric: 'x:ttft_seconds'{more}}}]}}\nnot_told: {silent}\n",
        "x.yaml",
    )


def test_ranks_and_models_are_read_apart_and_copies_once() -> None:
    rows = [
        ('rank="0",model="a"', [1, 2, 3]),
        ('rank="0",model="b"', [4, 0, 0]),
        ('rank="1",model="a"', [0, 0, 9]),
    ]
    samples = read_engine(_page(rows), _mapping(""), latencies=True)
    told = {(one.rank, one.model): one.latencies[0].counts for one in samples}
    assert told == {(0, "a"): (1, 2, 3), (0, "b"): (4, 0, 0), (1, "a"): (0, 0, 9)}
    copies = [(f'tp="{tp}"', [tp, 0, 0]) for tp in (10, 2, 1)]
    (sample,) = read_engine(_page(copies), _mapping(", lowest: [tp]"), latencies=True)
    assert sample.latencies[0].counts == (1, 0, 0)


def test_parts_are_added_only_where_the_mapping_says_so() -> None:
    rows = [('stream="yes"', [1, 2, 3]), ('stream="no"', [10, 20, 30])]
    (sample,) = read_engine(_page(rows), _mapping(", sum_over: [stream]"), latencies=True)
    assert (sample.latencies[0].counts, sample.latencies[0].sum_ms) == ((11, 22, 33), 33_000.0)
    (sample,) = read_engine(_page(rows), _mapping(""), latencies=True)
    assert sample.latencies == []
    assert ("ambiguous", "ttft") in {(problem.kind, problem.reading) for problem in sample.problems}


@given(
    rounds=st.lists(
        st.tuples(
            st.lists(st.integers(0, 50), min_size=3, max_size=3), st.sampled_from(["", "NaN", "x", "5 6"])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_known_layout_reads_exactly_as_a_new_one(rounds: list[tuple[list[int], str]]) -> None:
    mapping = _mapping("")
    for counts, fault in rounds:
        body = _page([('rank="0",model="a"', counts)])
        if fault:
            body = body.replace(
                b'x:running{rank="0",model="a"} 1', b'x:running{rank="0",model="a"} ' + fault.encode()
            )
        known = read_engine(body, mapping, latencies=True)
        reader._plans.clear()
        histograms._plans.clear()
        assert known == read_engine(body, mapping, latencies=True)
