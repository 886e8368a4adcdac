"""The rolling aggregate that every peer keeps for a key: a 10 s ring and totals of count, ok and tokens."""

from __future__ import annotations

import msgspec

SLOTS = 10


class Event(msgspec.Struct):
    """What the aggregate needs of an outcome; other fields are skipped."""

    instance: str
    cause: str
    at_ms: int
    output_tokens: int = 0


class Envelope(msgspec.Struct):
    """A record of several events."""

    events: list[Event]


_SINGLE = msgspec.json.Decoder(Event)
_BATCH = msgspec.json.Decoder(Envelope)


def events_of(value: bytes, batch: bool) -> list[Event]:
    """The events of one record."""
    return _BATCH.decode(value).events if batch else [_SINGLE.decode(value)]


def empty() -> dict:
    """The state of a new key: ring slots are ``[second, count, ok, tokens]``."""
    return {"n": 0, "ok": 0, "tokens": 0, "ring": [[0, 0, 0, 0] for _ in range(SLOTS)]}


def add(state: dict, cause: str, at_ms: int, tokens: int) -> None:
    """Count one outcome."""
    ok = 1 if cause == "ok" else 0
    second = at_ms // 1000
    slot = state["ring"][second % SLOTS]
    if slot[0] != second:
        slot[:] = [second, 0, 0, 0]
    slot[1] += 1
    slot[2] += ok
    slot[3] += tokens
    state["n"] += 1
    state["ok"] += ok
    state["tokens"] += tokens


def row(key: str, state: dict) -> dict:
    """What is published of a key: totals, and the sum of the last 10 s of event time."""
    newest = max(slot[0] for slot in state["ring"])
    live = [slot for slot in state["ring"] if slot[0] > newest - SLOTS]
    return {
        "key": key,
        "n": state["n"],
        "ok": state["ok"],
        "tokens": state["tokens"],
        "ring": [sum(slot[place] for slot in live) for place in (1, 2, 3)],
    }
