"""Events, rows and records for the sink's tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas.base import Event, Row
from schemas.codec import envelope_headers, headers_for, to_json
from schemas.decisions import Decision
from schemas.envelopes import Envelope
from schemas.outcomes import Outcome
from schemas.readings import EngineGauges, Reading
from schemas.telemetry import Telemetry
from schemas.topics import Topic
from transport.clock import now_ms

POOL = "llama-70b@1"


@dataclass
class Record:
    """What a Kafka consumer would hand over."""

    offset: int
    value: bytes | None
    headers: Any = ()
    partition: int = 0
    timestamp: int = field(default_factory=now_ms)
    key: bytes | None = None


def outcome(decision: str, intent: str, **changes: Any) -> Outcome:
    """An outcome that ended ok within its level, now, unless ``changes`` say otherwise."""
    at_ms = changes.pop("at_ms", now_ms())
    given: dict[str, Any] = {
        "decision_id": decision,
        "intent_id": intent,
        "intent_inferred": False,
        "attempt": 1,
        "router": "router-1",
        "router_boot": "b1",
        "tenant": "acme",
        "service_class": "chat",
        "pool": POOL,
        "entry_region": "edge",
        "region": "eu",
        "instance": "eu-1",
        "cause": "ok",
        "at_ms": at_ms,
        "intent_started_at_ms": at_ms - 1000,
        "started_at_ms": at_ms - 1000,
        "ttft_ms": 200.0,
        "tpot_ms": 20.0,
        "output_tokens": 50,
        "wasted_tokens": 0,
        "ttft_slo_ms": 1000.0,
        "tpot_slo_ms": 60.0,
        "deadline_at_ms": at_ms + 60_000,
        "within_slo": True,
    }
    return Outcome(**{**given, **changes})


def decision(decision: str, intent: str, **changes: Any) -> Decision:
    """A dispatched decision, now."""
    at_ms = changes.pop("at_ms", now_ms())
    given: dict[str, Any] = {
        "decision_id": decision,
        "intent_id": intent,
        "intent_inferred": False,
        "attempt": 1,
        "at_ms": at_ms,
        "intent_started_at_ms": at_ms,
        "deadline_at_ms": at_ms + 60_000,
        "router": "router-1",
        "router_boot": "b1",
        "tenant": "acme",
        "service_class": "chat",
        "pool": POOL,
        "entry_region": "edge",
        "verdict": "dispatched",
        "region": "eu",
        "instance": "eu-1",
        "ttft_slo_ms": 1000.0,
        "tpot_slo_ms": 60.0,
        "work_tokens": 100.0,
    }
    return Decision(**{**given, **changes})


def telemetry(instance: str, at_ms: int, running: float | None = None, **changes: Any) -> Telemetry:
    """A scrape; ``running`` None is unknown."""
    reading = Reading() if running is None else Reading(value=running, quality="fresh", age_ms=5.0)
    given: dict[str, Any] = {
        "instance": instance,
        "boot": "b1",
        "boot_started_at_ms": at_ms - 1000,
        "engine": "vllm",
        "region": "eu",
        "pools": [POOL],
        "at_ms": at_ms,
        "reachable": running is not None,
        "gauges": EngineGauges(requests_running=reading),
    }
    return Telemetry(**{**given, **changes})


def envelope(
    topic: Topic, events: list[Any], *, offset: int, partition: int = 0, producer: str = "p1", seq: int = 0
) -> Record:
    """A record that holds these events as one producer sent them."""
    model = topic.model
    assert issubclass(model, Event)
    batch = Envelope[model](  # type: ignore[valid-type]
        producer=producer, boot="b1", seq=seq, sent_at_ms=now_ms(), events=events
    )
    return Record(offset, to_json(batch), envelope_headers(model), partition, key=producer.encode())


def row_record(row: Row, *, offset: int, partition: int = 0) -> Record:
    """A record of a compacted topic."""
    return Record(offset, to_json(row), headers_for(row), partition, key=row.key().encode())
