"""Every event and row survives the wire, by both of its readers, which agree on what to refuse."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.base import Event, Row
from schemas.codec import to_json
from schemas.export import json_schema, models
from schemas.fastpath import decoder_of, encode
from tests.schemas.samples import sample

MODELS = models()
SLOW_DATA = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("header", MODELS)
@SLOW_DATA
@given(seed=st.integers(0, 2**32))
def test_both_readers_read_what_was_written(header: str, seed: int) -> None:
    cls = MODELS[header]
    written = sample(cls, random.Random(seed))
    wire = to_json(written)
    assert cls.model_validate_json(wire) == written
    struct = decoder_of(cls).decode(wire)
    assert cls.model_validate_json(encode(struct)) == written
    jsonschema.validate(json.loads(wire), json_schema(header, cls))


WRONG: list[Any] = [None, "", "a b", -1, 1e300, 2**70, [], {}, True, "x" * 600, [None]]
"""Values that fit few fields."""


def accepts(read: Any, wire: bytes) -> bool:
    try:
        read(wire)
    except (ValidationError, msgspec.MsgspecError):
        return False
    return True


@pytest.mark.parametrize("header", MODELS)
@SLOW_DATA
@given(seed=st.integers(0, 2**32))
def test_both_readers_refuse_the_same_payloads(header: str, seed: int) -> None:
    cls, rng = MODELS[header], random.Random(seed)
    payload = json.loads(sample(cls, rng).model_dump_json())
    field = rng.choice(sorted(payload))
    if rng.random() < 0.8:
        payload[field] = rng.choice(WRONG)
    else:
        del payload[field]
    wire = json.dumps(payload).encode()
    assert accepts(decoder_of(cls).decode, wire) == accepts(cls.model_validate_json, wire), payload


@pytest.mark.parametrize("header", MODELS)
def test_unknown_fields_are_ignored(header: str) -> None:
    cls = MODELS[header]
    payload = json.loads(sample(cls, random.Random(1)).model_dump_json())
    payload["a_field_of_a_later_version"] = {"x": 1}
    wire = json.dumps(payload).encode()
    assert accepts(decoder_of(cls).decode, wire)
    assert accepts(cls.model_validate_json, wire)


@pytest.mark.parametrize("wire", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":NaN}', b'"text"'])
def test_what_is_no_object_is_refused_by_both(wire: bytes) -> None:
    for cls in MODELS.values():
        assert not accepts(decoder_of(cls).decode, wire)
        assert not accepts(cls.model_validate_json, wire)


def test_every_event_and_row_says_what_it_is() -> None:
    for cls in MODELS.values():
        if issubclass(cls, Event | Row):
            assert cls.__doc__
            assert cls.schema_name
        for name, field in cls.model_fields.items():
            if name.endswith(("_at", "_time", "_duration", "_latency")):
                pytest.fail(f"{cls.__name__}.{name} names no unit")
            assert field is not None
