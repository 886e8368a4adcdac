"""The lean parser agrees with prometheus_client's on good text and trusts nothing of bad text."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sources.engines.mapping import mapping_of
from sources.problems import Unreadable
from sources.prometheus_text import MAX_BYTES, Exposition, parse, parse_labels

Sample = tuple[str, frozenset[tuple[str, str]], float | str]
G = "# TYPE g gauge\n"


def _number(value: float) -> float | str:
    return "NaN" if math.isnan(value) else value


def _reference(text: str, wanted: frozenset[str]) -> set[Sample]:
    return {
        (sample.name, frozenset(sample.labels.items()), _number(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in wanted
    }


def _ours(found: Exposition) -> set[Sample]:
    return {
        (name, frozenset(one.labels.by_name.items()), _number(one.value))
        for name, series in found.series.items()
        for one in series
    }


@pytest.mark.parametrize("name", ["idle", "under_load", "after", "restart", "small_cache"])
def test_the_captures_parse_as_prometheus_client_parses_them(
    capture: Callable[[str], bytes], name: str
) -> None:
    body = capture(name)
    wanted = mapping_of("vllm").wanted | {"vllm:time_to_first_token_seconds_bucket", "python_info"}
    found = parse(body, wanted)
    assert _ours(found) == _reference(body.decode(), wanted)
    assert len(_ours(found)) > 30
    assert not found.problems


label_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)
values = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(label_values, label_values, values), min_size=1, max_size=6),
    st.floats(min_value=0, max_value=1e15),
)
def test_whatever_prometheus_client_writes_is_read_the_same(
    gauges: list[tuple[str, str, float]], count: float
) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", 'help with "quotes", a \\ and {braces}', ["a", "b"], registry=registry)
    for first, second, value in gauges:
        gauge.labels(first, second).set(value)
    Counter("c", "", registry=registry).inc(count)
    Histogram("h", "", ["a"], registry=registry).labels("}{ 1").observe(count)
    body = generate_latest(registry)
    wanted = frozenset({"g", "c_total", "h_bucket", "h_sum"})
    found = parse(body, wanted)
    assert _ours(found) == _reference(body.decode(), wanted)
    assert not found.problems
    assert found.type_of("c_total") == "counter"
    assert found.type_of("g") == "gauge"


names = st.text("ab_:1", min_size=1, max_size=5).map(lambda rest: "m" + rest)


@given(st.sets(names, min_size=1, max_size=12), st.sets(names, max_size=12), st.booleans())
def test_exactly_the_wanted_names_are_found(there: set[str], others: set[str], braces: bool) -> None:
    """Names that begin other names, or end as others do, are kept apart."""
    every = sorted(there | others)
    lines = [
        f"# TYPE {name} gauge\n{name}{'{}' if braces else ''} {number}" for number, name in enumerate(every)
    ]
    found = parse(("\n".join(lines) + "\n").encode(), frozenset(there))
    assert {name: series[0].value for name, series in found.series.items()} == {
        name: every.index(name) for name in there
    }
    assert there <= set(found.types)


NO_SAMPLES = (
    *("g 1_0", "g 0x10", "g １", "g infinity", "g", "g 1 2", "g 1 x", "g -", "g 1e", "g{ 1", "g{a=1} 2"),
    *('g{a="1} 2', 'g{a="1",a="2"} 3', 'g{a="1"b="2"} 3', 'g{a="1"} 2 # {b="3"} 4'),
    *("g 1 1795980784940 3", "g 1.0# HELP g"),
)


@pytest.mark.parametrize("line", NO_SAMPLES)
def test_a_line_that_is_no_sample_takes_its_whole_metric_out(line: str) -> None:
    found = parse(f'{G}g{{a="0"}} 5\n{line}\nh 1\n'.encode(), frozenset({"g", "h"}))
    assert "g" not in found.series
    assert found.broken["g"].kind == "unparseable"
    assert [one.value for one in found.series["h"]] == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        f"{G} \tg  7 \n",
        f"{G}g\t7\n",
        f"{G}g {{}} 7\r\n",
        f'{G}g{{a="x",}} 7\n',
        f'{G}g{{ a = "x" , b="}}" }} 7\n',
        "  # TYPE   g \t gauge \n g 7\n",
    ],
)
def test_blanks_where_the_format_allows_them(text: str) -> None:
    found = parse(text.encode(), frozenset({"g"}))
    assert [one.value for one in found.series["g"]] == [7.0]
    assert found.type_of("g") == "gauge"


def test_escapes_in_label_values() -> None:
    labels = parse_labels(r'a="\\n\n\"x\q",b=""')
    assert labels is not None
    assert labels.by_name == {"a": '\\n\n"x\\q', "b": ""}


def test_a_series_twice_is_used_in_neither_value() -> None:
    found = parse(f'{G}g{{a="1",b="2"}} 1\ng{{b="2",a="1"}} 2\n'.encode(), frozenset({"g"}))
    assert found.series == {}
    assert found.broken["g"].kind == "duplicate"


def test_two_types_for_one_metric() -> None:
    found = parse(b"# TYPE g gauge\n# TYPE g counter\ng 1\n", frozenset({"g"}))
    assert found.broken["g"].kind == "wrong_type"


def test_a_cut_off_last_line_is_not_believed() -> None:
    found = parse(f"{G}h 1\ng 12".encode(), frozenset({"g", "h"}))
    assert [problem.kind for problem in found.problems] == ["truncated", "truncated"]
    assert "g" not in found.series
    assert "h" in found.series


def test_an_openmetrics_counter_is_declared_without_its_suffix() -> None:
    found = parse(b"# TYPE c counter\nc_total 3\n# EOF\n", frozenset({"c_total"}))
    assert found.type_of("c_total") == "counter"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b"<html><body>502</body></html>",
        b'{"error": 1}',
        b"\xff\xfe\x00g 1",
        b"g",
        b"x 1\ny 2\n",
    ],
)
def test_what_is_no_exposition_is_refused_whole(body: bytes) -> None:
    with pytest.raises(Unreadable) as refused:
        parse(body, frozenset({"h"}))
    assert refused.value.kind == "not_metrics"


def test_a_text_beyond_the_bound_is_refused_unread() -> None:
    with pytest.raises(Unreadable) as refused:
        parse(b"g 1\n" * (MAX_BYTES // 4 + 1), frozenset({"g"}))
    assert refused.value.kind == "too_large"


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_read(body: bytes) -> None:
    try:
        found = parse(b"# TYPE g gauge\n" + body, frozenset({"g"}))
    except Unreadable:
        pytest.fail("it had a TYPE line")
    assert set(found.series) <= {"g"}
