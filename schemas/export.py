"""The contract for outsiders: JSON Schema of each event and row, AsyncAPI 3 of each topic, ACLs, a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from schemas.base import Event, header_of
from schemas.envelopes import Envelope, envelope_header
from schemas.operations import CLAIM_KEY, Claim
from schemas.topics import TOPICS, Component, Topic

JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
COMPONENTS: tuple[Component, ...] = ("source", "router", "streams", "sink", "operator", "tool")


def models() -> dict[str, type[BaseModel]]:
    """Every payload by its ``schema`` header: events, envelopes of raw topics, rows."""
    found: dict[str, type[BaseModel]] = {header_of(Claim): Claim}
    for topic in TOPICS:
        found[header_of(topic.model)] = topic.model
        if topic.enveloped and issubclass(topic.model, Event):
            found[envelope_header(topic.model)] = Envelope[topic.model]  # type: ignore[name-defined]
    return dict(sorted(found.items()))


def json_schema(header: str, model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one payload; ``$id`` is its header."""
    schema = model.model_json_schema()
    return {"$schema": JSON_SCHEMA_DIALECT, "$id": f"urn:tokenfleet:{header.replace('/', ':')}", **schema}


def acls(topics: tuple[Topic, ...] = TOPICS) -> list[dict[str, str]]:
    """Who may do what: one entry a component, topic and operation; nothing else is allowed."""
    return [
        {"principal": f"User:tokenfleet-{component}", "topic": topic.name, "operation": operation}
        for topic in topics
        for operation, components in (("Write", topic.writers), ("Read", topic.readers))
        for component in sorted(components)
    ]


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3.0 document: a channel a topic, its messages by header, who sends and who receives."""
    by_header = models()
    references, definitions = models_json_schema(
        [(model, "validation") for model in by_header.values()], ref_template="#/components/schemas/{model}"
    )
    channels, operations, messages = {}, {}, {}
    for header, model in by_header.items():
        messages[_id(header)] = {
            "name": header,
            "title": _title(header, model),
            "contentType": "application/json",
            "headers": {
                "type": "object",
                "required": ["schema"],
                "properties": {"schema": {"type": "string", "const": header}},
            },
            "payload": references[model, "validation"],
        }
    for topic in TOPICS:
        channels[_id(topic.name)] = {
            "address": topic.name,
            "description": topic.about,
            "messages": {_id(h): {"$ref": f"#/components/messages/{_id(h)}"} for h in topic.headers},
            "bindings": {
                "kafka": {
                    "topic": topic.name,
                    "partitions": topic.partitions,
                    "topicConfiguration": {"cleanup.policy": [topic.config()["cleanup.policy"]]},
                    "bindingVersion": "0.5.0",
                }
            },
            "x-record-key": topic.record_key,
            "x-partition-key": topic.partition_key,
        }
        for action, components in (("send", topic.writers), ("receive", topic.readers)):
            for component in components:
                operations[_id(f"{component}.{action}.{topic.name}")] = {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{_id(topic.name)}"},
                    "summary": f"The {component} {'writes' if action == 'send' else 'reads'} {topic.name}.",
                }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "TokenFleet",
            "version": "1",
            "description": "Event streams of an LLM fleet's control plane. Values are JSON; the `schema` "
            "header names what a record holds; readers ignore fields they do not know.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "schemas": definitions["$defs"],
        },
    }


def topic_table() -> str:
    """The registry as a Markdown table."""
    lines = [
        "# Topics",
        "",
        "Made by `tokenfleet schemas export` from the registry in `schemas/topics.py`; do not edit.",
        "",
        f"Rows that streams owns are preceded by claim records (key `{CLAIM_KEY}`, schema `claim/1`): "
        "a row's epoch is its owner's claim offset.",
        "",
        "| topic | holds | record key | partition key | partitions | kept | writers | readers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for topic in TOPICS:
        kept = "compacted" if topic.compacted else f"{(topic.retention_ms or 0) // 3_600_000} h"
        lines.append(
            f"| `{topic.name}` | `{topic.headers[0]}`: {topic.about} | {_cell(topic.record_key)} "
            f"| {_cell(topic.partition_key)} | {topic.partitions} | {kept} | {', '.join(topic.writers)} "
            f"| {', '.join(topic.readers)} |"
        )
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """Every file of the export by its path below the export folder."""
    out = {
        f"schemas/{_file(header)}.json": _dump(json_schema(header, model))
        for header, model in models().items()
    }
    return out | {"asyncapi.json": _dump(asyncapi()), "acls.json": _dump(acls()), "topics.md": topic_table()}


def write(folder: Path) -> list[Path]:
    """Write the export; returns what changed. Files of schemas that are gone stay: payloads live on."""
    changed = []
    for name, text in files().items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            changed.append(path)
    return changed


def stale(folder: Path) -> list[str]:
    """Which files of the committed export are not what the models say now."""
    return [
        name
        for name, text in files().items()
        if not (folder / name).exists() or (folder / name).read_text() != text
    ]


def _id(name: str) -> str:
    return name.replace("/", "-").replace(".", "_")


def _file(header: str) -> str:
    return header.replace("/", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _title(header: str, model: type[BaseModel]) -> str:
    if issubclass(model, Envelope):
        return f"An envelope: a batch of {header.partition('.')[0]} events of one producer."
    return (model.__doc__ or "").strip().splitlines()[0]


def _dump(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
