"""Payloads as they were once written parse for ever; the committed export is what the models say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.codec import Refused, decode_events, decode_row, envelope_headers, headers_for, parse_row
from schemas.export import acls, asyncapi, models, stale
from schemas.fastpath import decoder_of
from schemas.outcomes import Outcome
from schemas.topics import OUTCOMES, REGIONS, TOPICS, topic

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((ROOT / "tests/fixtures/payloads").glob("*.json"))


def test_there_is_a_golden_payload_of_every_schema() -> None:
    assert {path.stem for path in GOLDEN} >= {header.replace("/", "-") for header in models()}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_payloads_parse_for_ever(path: Path) -> None:
    name, _ = path.stem.rsplit("-", 1)
    cls = {header.partition("/")[0]: model for header, model in models().items()}[name]
    wire = path.read_bytes()
    read = cls.model_validate_json(wire)
    assert decoder_of(cls).decode(wire)
    for field, value in json.loads(wire).items():
        if not isinstance(value, dict | list):
            assert getattr(read, field) == value


def test_the_committed_export_is_current() -> None:
    assert stale(ROOT / "docs/api") == [], "Run `tokenfleet schemas export` and commit what changed."


def test_asyncapi_references_resolve() -> None:
    document = asyncapi()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(ref := node.get("$ref"), str):
                target: object = document
                for part in ref.removeprefix("#/").split("/"):
                    assert isinstance(target, dict)
                    target = target[part]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    assert len(document["channels"]) == len(TOPICS)


def test_only_the_owner_may_write_what_grants_capacity() -> None:
    writers = {
        entry["principal"]
        for entry in acls()
        if (entry["topic"], entry["operation"]) == ("fleet.leases", "Write")
    }
    assert writers == {"User:tokenfleet-streams"}


def test_refusals_say_what_was_wrong_and_hold_no_content() -> None:
    with pytest.raises(Refused, match="no schema header") as none:
        decode_events(OUTCOMES, (), b"{}")
    assert none.value.kind == "unknown_schema"
    with pytest.raises(Refused, match="'nonsense/9'") as unknown:
        decode_events(OUTCOMES, (("schema", b"nonsense/9"),), b"{}")
    assert unknown.value.kind == "unknown_schema"
    with pytest.raises(Refused, match="not JSON") as unparseable:
        decode_events(OUTCOMES, tuple(headers_for(Outcome)), b'{"decision_id": "secret prompt')
    assert unparseable.value.kind == "unparseable"
    assert "secret" not in unparseable.value.reason
    with pytest.raises(Refused) as impossible:
        decode_events(OUTCOMES, tuple(envelope_headers(Outcome)), b'{"producer":"p","boot":"b","seq":-1}')
    assert impossible.value.kind == "impossible_value"
    with pytest.raises(Refused, match=r"fleet\.regions"):
        parse_row(REGIONS, (("schema", b"region/1"),), b'{"as_of_ms": 5}')
    with pytest.raises(Refused):
        decode_row(REGIONS, (("schema", b"region/1"),), b'{"as_of_ms": 5}')


def test_an_unknown_topic_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"fleet\.outcomes"):
        topic("fleet.nothing")


def test_names_that_keys_are_made_of_are_checked_on_the_fast_path() -> None:
    wire = json.loads((ROOT / "tests/fixtures/payloads/outcome-1.json").read_bytes())
    headers = tuple(headers_for(Outcome))
    assert decode_events(OUTCOMES, headers, json.dumps(wire).encode()).events[0].pool == wire["pool"]
    for field in Outcome.key_fields:
        with pytest.raises(Refused, match=f"{field} holds characters that no name may have"):
            decode_events(OUTCOMES, headers, json.dumps(wire | {field: "a|b"}).encode())
