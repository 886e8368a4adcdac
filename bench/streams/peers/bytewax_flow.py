"""bytewax: a Kafka source in batches of 1,000, a stateful batch step, rows by its notification of 100 ms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import msgspec
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic

sys.path.insert(0, os.path.dirname(__file__))
from aggregate import Event, add, empty, events_of, row

BATCH = os.environ["BATCH"] == "1"
EVERY = timedelta(milliseconds=100)
Keyed = tuple[str, Event]


def decode(messages: list) -> Iterable[Keyed]:
    """The events of a batch of records by key."""
    return [(event.instance, event) for message in messages for event in events_of(message.value, BATCH)]


class Total(StatefulBatchLogic):
    """The aggregate of one key."""

    def __init__(self, state: dict | None) -> None:
        self.state = state or empty()
        self.due: datetime | None = None

    def on_batch(self, values: list[Event]) -> tuple[list[dict], bool]:
        for event in values:
            add(self.state, event.cause, event.at_ms, event.output_tokens)
        if self.due is None:
            self.due = datetime.now(UTC) + EVERY
        return [], StatefulBatchLogic.RETAIN

    def on_notify(self) -> tuple[list[dict], bool]:
        self.due = None
        return [row("", self.state)], StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[list[dict], bool]:
        return [], StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        return self.due

    def snapshot(self) -> dict:
        return self.state


def message(keyed: tuple[str, dict]) -> KafkaSinkMessage:
    """A row as a record."""
    key, value = keyed
    return KafkaSinkMessage(key.encode(), msgspec.json.encode(value | {"key": key}))


flow = Dataflow("bench")
source = KafkaSource(
    [os.environ["BROKER"]],
    [os.environ["SOURCE"]],
    starting_offset=-2,
    batch_size=1000,
    add_config={"fetch.queue.backoff.ms": "10"},
)
records = op.input("in", flow, source)
events = op.flat_map_batch("decode", records, decode)
totals = op.stateful_batch("aggregate", events, Total)
op.output(
    "out",
    op.map("encode", totals, message),
    KafkaSink(
        [os.environ["BROKER"]],
        os.environ["SINK"],
        add_config={"partitioner": "murmur2_random", "linger.ms": "5"},
    ),
)
