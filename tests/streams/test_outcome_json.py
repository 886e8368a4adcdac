"""What of JSON the compiled reader takes is what msgspec says it is, however it was damaged."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import EARLIEST_MS, LATEST_MS
from schemas.codec import to_json
from schemas.envelopes import Envelope
from schemas.outcomes import CAUSES, Outcome
from streams.outcome_columns import EVENT_FIELDS
from tests.streams.outcome_records import (
    AT_MS,
    BARE,
    BATCH,
    FRAME,
    SINGLE,
    Headers,
    batch_of,
    envelope,
    read_all,
    single,
)

LETTERS = "abcXYZ019._:/+-"
names = st.text(LETTERS, min_size=1, max_size=200) | st.sampled_from(["eu", "i0001"])
pools = st.builds(
    "{}@{}".format, st.text(LETTERS, min_size=1, max_size=99), st.text(LETTERS, min_size=1, max_size=99)
)
times = st.integers(EARLIEST_MS, LATEST_MS)
durations = st.floats(0.001, 604_800_000.0) | st.integers(0, 604_800_000).map(float)
tokens = st.integers(0, 100_000_000)
outcomes = st.builds(
    Outcome,
    decision_id=names,
    intent_id=names,
    intent_inferred=st.booleans(),
    attempt=st.integers(1, 1000),
    router=names,
    router_boot=names,
    tenant=names,
    service_class=names,
    pool=pools,
    entry_region=names,
    region=st.none() | names,
    instance=st.none() | names,
    instance_boot=st.none() | names,
    cause=st.sampled_from(CAUSES),
    status=st.none() | st.integers(100, 599),
    at_ms=times,
    intent_started_at_ms=times,
    started_at_ms=times,
    first_token_at_ms=st.none() | times,
    queue_ms=st.none() | durations,
    ttft_ms=st.none() | durations,
    tpot_ms=st.none() | durations,
    e2e_ms=st.none() | durations,
    prompt_tokens=st.none() | tokens,
    output_tokens=st.none() | tokens,
    wasted_tokens=st.none() | tokens,
    ttft_slo_ms=durations,
    tpot_slo_ms=durations,
    deadline_at_ms=times,
    within_slo=st.booleans(),
    work_tokens=st.none() | durations,
)
bare = st.fixed_dictionaries(
    {**{name: st.just(value) for name, value in BARE.items()}, "at_ms": times, "within_slo": st.booleans()},
    optional={
        "region": names,
        "instance": st.none() | names,
        "ttft_ms": durations,
        "output_tokens": tokens,
        "deadline_at_ms": times,
        "work_tokens": durations,
    },
)


def record_of(events: list[Outcome]) -> tuple[Headers, bytes]:
    if len(events) == 1:
        return SINGLE, to_json(events[0])
    return BATCH, to_json(Envelope[Outcome](producer="r", boot="b", seq=3, sent_at_ms=AT_MS, events=events))


@settings(deadline=None)
@given(st.lists(st.lists(outcomes, min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_our_producers_write_is_plain(told: list[list[Outcome]]) -> None:
    read = read_all(batch_of(*map(record_of, told)))
    assert read.odd == []
    assert len(read) == sum(map(len, told))


SNIPPETS = [
    *(
        b"",
        b" ",
        b"  ",
        b"\n",
        b"\t",
        b",",
        b":",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\x00",
        b"\x02",
        b"\xff",
    ),
    *(
        b"null",
        b"true",
        b"false",
        b"NaN",
        b"Infinity",
        b"-1",
        b"-0",
        b"01",
        b"1.",
        b".5",
        b"1e5",
        b"1E-3",
        b"1.0",
    ),
    *(
        b"0.30000000000000004",
        b"123456.78901234567",
        b"9007199254740993",
        b"1" * 40,
        b"0." + b"0" * 30 + b"1",
    ),
    *(b'"\\u0041"', b'"\\n"', '"é"'.encode(), b'"\x7f"', b'"\xff"', b'""', b'"a b"', b"[]", b"{}", b"[1]"),
    *(
        b'"pool":"x@y",',
        b'"at_ms":1700000000001,',
        b'"unknown":{"a":1},',
        b'"cause":"lost",',
        b'"region":null,',
    ),
    *(b'"events":[],', b'"seq":1,', b'"ttft_ms":null,', b'"":1,', b'"ttft_ms" :1,', b'"\\u0070ool":"x@y",'),
]
BYTES, VALUE, MEMBER = re.compile(rb""), re.compile(rb"(?<=:)[^,{}\[\]]+"), re.compile(rb"(?<=[{,])|(?<=, )")
changes = st.lists(
    st.tuples(
        st.sampled_from([BYTES, VALUE, MEMBER]),
        st.floats(0, 1),
        st.integers(0, 12),
        st.sampled_from(SNIPPETS) | st.binary(max_size=3),
    ),
    max_size=3,
)


def changed(value: bytes, edits: list[tuple[re.Pattern[bytes], float, int, bytes]]) -> bytes:
    """Each edit puts others in the place of some bytes, of a member's value, or before a member."""
    for what, share, cut, put in edits:
        places = [match.span() for match in what.finditer(value)] or [(0, 0)]
        start, end = places[int(share * (len(places) - 1))]
        value = value[:start] + put + value[end + (cut if what is BYTES else 0) :]
    return value


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.lists(outcomes, min_size=1, max_size=2), changes), min_size=1, max_size=4))
def test_damaged_records_are_read_right_or_odd(told: list[Any]) -> None:
    read_all(
        batch_of(
            *(
                (headers, changed(value, edits))
                for (headers, value), edits in ((record_of(events), edits) for events, edits in told)
            )
        )
    )


@settings(deadline=None, max_examples=400)
@given(
    st.lists(bare, min_size=1, max_size=3), changes, st.sampled_from([(",", ":"), (", ", ": "), (" , ", ":")])
)
def test_damaged_small_records_too(events: list[Any], edits: Any, separators: tuple[str, str]) -> None:
    whole = {**FRAME, "events": events}
    for headers, value in ((SINGLE, events[0]), (BATCH, whole)):
        text = json.dumps(value, separators=separators).encode()
        read_all(batch_of((headers, changed(text, edits)), (headers, text), (headers, None)))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "",
            "a@b",
            "ok",
            "lost",
            "x" * 200,
            "x" * 201,
            0,
            -1,
            0.0,
            1e300,
            604_800_000,
            604_800_000.1,
            100_000_001,
            EARLIEST_MS,
            EARLIEST_MS - 1,
            LATEST_MS,
            LATEST_MS + 1,
            2**53,
            2**53 + 1,
            [],
            {},
        ]
    )
)


@settings(deadline=None, max_examples=400)
@given(
    st.dictionaries(st.sampled_from([*EVENT_FIELDS, "other", "seq"]), scalars, max_size=3),
    st.dictionaries(st.sampled_from([*FRAME, "events", "other"]), scalars, max_size=1),
)
def test_any_value_in_any_field_is_read_right_or_odd(odd: dict[str, Any], frame: dict[str, Any]) -> None:
    event = {**BARE, **odd}
    text = json.dumps({**FRAME, "events": [BARE, event], **frame}).encode()
    read_all(batch_of(single(event), envelope(BARE, event), (BATCH, text)))


@settings(deadline=None, max_examples=1000)
@given(
    st.decimals(0, 604_800_000, allow_nan=False, places=6)
    | st.floats(0.001, 604_800_000.0)
    | st.from_regex(r"(0|[1-9][0-9]{0,8})\.[0-9]{1,18}", fullmatch=True)
)
def test_decimals_are_the_doubles_that_python_reads(number: Any) -> None:
    text = json.dumps(BARE)[:-1].encode() + b',"ttft_ms":%s}' % str(number).encode()
    read = read_all(batch_of((SINGLE, text)))
    if read.odd:  # a sign, an exponent, too many digits, or out of bounds
        plain = str(number).replace(".", "").isdigit() and 0 <= float(number) <= 604_800_000
        assert not plain or len(str(number).replace(".", "").lstrip("0")) > 17
    else:
        assert float(read.ttft_ms[0]).hex() == float(str(number)).hex()


PLAIN = b'{"pool":"m@v1","entry_region":"eu","cause":"ok","at_ms":1700000000000,"within_slo":true'
HEAD = b'{"producer":"r","boot":"b","seq":0,"sent_at_ms":1700000000000'


@pytest.mark.parametrize(
    "more",
    [
        *(
            b"",
            b',"region":null',
            b', "ttft_ms": 0',
            b',"ttft_ms":0.10',
            b',"queue_ms":604800000.0',
            b',"x":true',
        ),
        *(b',"tpot_ms":123.45678901234567', b',"output_tokens":100000000', b',"x":""', b',"x":9.50'),
        *(
            b',"wasted_tokens":0',
            b',"instance":"%s"' % (b"i" * 200),
            b',"":1,"":2',
            b',"x":"%s"' % (b"x" * 999),
        ),
    ],
)
def test_plain_events(more: bytes) -> None:
    read = read_all(
        batch_of((SINGLE, PLAIN + more + b"}"), (BATCH, HEAD + b',"events":[%s}]}' % (PLAIN + more)))
    )
    assert (len(read), read.odd) == (2, [])


@pytest.mark.parametrize(
    "more",
    [
        *(
            b',"pool":"m@v1"',
            b',"at_ms":1700000000000',
            b',"region":null,"region":null',
            b',"ttft_ms":1,"ttft_ms":2',
        ),
        *(
            b',"output_tokens":01',
            b',"x":01',
            b',"x":1.',
            b',"x":.5',
            b',"ttft_ms":1.',
            b',"ttft_ms":00.5',
            b',"x":-1',
        ),
        *(
            b',"ttft_ms":1e3',
            b',"ttft_ms":-0',
            b',"ttft_ms":604800000.1',
            b',"output_tokens":100000001',
            b',"x":[]',
        ),
        *(
            b',"output_tokens":1.0',
            b',"ttft_ms":"1"',
            b',"ttft_ms":true',
            b',"ttft_ms":nul',
            b',"x":{}',
            b',"x":NaN',
        ),
        *(
            b',"ttft_ms":0.' + b"1" * 40,
            b',"ttft_ms":' + b"9" * 19,
            b',"instance":""',
            b',"x":"\\n"',
            b',"x":"\n"',
        ),
        *(
            b',"instance":"%s"' % (b"i" * 201),
            b',"instance":7',
            b',"instance":"\\u0069"',
            b',"x":"\xc3\xa9"',
            b",",
        ),
        *(
            b',"\\u0070ool":"x@y"',
            b',  "x":1',
            b',"x":  1',
            b',"x" :1',
            b' ,"x":1',
            b',"x":1 ',
            b',"x"',
            b',"x":',
        ),
        *(b"} ", b"}}", b"}" + PLAIN, b',"x":tru', b',"x":"', b",x:1", b',"x":1;'),
    ],
)
def test_odd_events(more: bytes) -> None:
    read = read_all(
        batch_of((SINGLE, PLAIN + more + b"}"), (BATCH, HEAD + b',"events":[%s}]}' % (PLAIN + more)))
    )
    assert (len(read), read.odd) == (0, [0, 1])


@pytest.mark.parametrize("field", [*BARE, *FRAME, "events"])
def test_what_is_missing_or_null_is_odd(field: str) -> None:
    whole = {**FRAME, "events": [BARE]}
    for source in (BARE, whole):
        if field in source:
            without = {name: value for name, value in source.items() if name != field}
            headers = SINGLE if source is BARE else BATCH
            records = [
                (headers, json.dumps(each).encode()) for each in (without, {**source, field: None}, source)
            ]
            assert read_all(batch_of(*records)).odd == [0, 1]


@pytest.mark.parametrize(
    "value",
    [
        *(HEAD + b',"events":[%s},]}' % PLAIN, HEAD + b',"events":[%s} ]}' % PLAIN, HEAD + b',"events":{}}'),
        *(
            HEAD + b',"events":[%s}],"events":[%s}]}' % (PLAIN, PLAIN),
            HEAD + b',"seq":1,"events":[%s}]}' % PLAIN,
        ),
        *(
            HEAD + b',"events":[%s}]' % PLAIN,
            HEAD + b',"events":[%s}' % PLAIN,
            HEAD + b',"events":[%s}]}x' % PLAIN,
        ),
        *(HEAD + b',"events":[', HEAD, b"{", b"[]", b"null", b"", b'"'),
    ],
)
def test_odd_envelopes(value: bytes) -> None:
    assert read_all(batch_of((BATCH, value), (SINGLE, value))).odd == [0, 1]
