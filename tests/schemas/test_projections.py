"""A projection takes what the whole reader takes, field by field; what it does not use it does not judge."""

from __future__ import annotations

from typing import Any

import pytest

from bench.envelopes import sample_outcome
from schemas.codec import Refused, decode_events, envelope_headers, headers_for, to_json
from schemas.envelopes import Envelope
from schemas.outcomes import Outcome
from schemas.projections import ProjectedReader
from schemas.topics import OUTCOMES

FIELDS = ("pool", "instance", "cause", "at_ms", "ttft_ms", "output_tokens", "region")
READER = ProjectedReader(OUTCOMES, FIELDS)
ONE = to_json(sample_outcome())
SINGLE, BATCH = list(headers_for(Outcome)), list(envelope_headers(Outcome))
MANY = to_json(
    Envelope[Outcome](
        producer="r", boot="b", seq=1, sent_at_ms=1_796_000_000_000, events=[sample_outcome()] * 3
    )
)


def fields_of(event: Any) -> list[Any]:
    return [getattr(event, name) for name in FIELDS]


@pytest.mark.parametrize(("headers", "value", "count"), [(SINGLE, ONE, 1), (BATCH, MANY, 3)])
def test_the_same_as_the_whole_reader(headers: Any, value: bytes, count: int) -> None:
    whole = decode_events(OUTCOMES, tuple(headers), value).events
    part = READER.events(tuple(headers), value)
    assert len(part) == count
    assert [fields_of(event) for event in part] == [fields_of(event) for event in whole]


@pytest.mark.parametrize(
    ("headers", "value", "kind"),
    [
        (SINGLE, None, "unparseable"), (SINGLE, b"{", "unparseable"), (SINGLE, b"{}", "impossible_value"),
        (SINGLE, ONE.replace(b"120.0", b"-1"), "impossible_value"), ([], ONE, "unknown_schema"),
        (BATCH, MANY.replace(b'"seq":1,', b""), "impossible_value"), (BATCH, ONE, "impossible_value"),
    ],
)  # fmt: skip
def test_refusals(headers: Any, value: bytes | None, kind: str) -> None:
    with pytest.raises(Refused) as refused:
        READER.events(tuple(headers), value)
    assert refused.value.kind == kind
    assert b"llama" not in refused.value.reason.encode()


def test_a_field_that_is_not_used_is_not_judged() -> None:
    assert READER.events(SINGLE, ONE.replace(b'"e2e_ms":3000.0', b'"e2e_ms":-1.0'))[0].cause == "ok"
