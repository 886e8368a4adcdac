"""quixstreams as its documentation has it: a streaming data frame, a stateful apply, rows to a topic.

It has no processing-time timer, so a key's row goes out with the first event 100 ms after its last row; the
state is RocksDB with a changelog topic.
"""

from __future__ import annotations

import os
import sys
import time

from quixstreams import Application, State

sys.path.insert(0, os.path.dirname(__file__))
from aggregate import add, empty, events_of, row

BATCH = os.environ["BATCH"] == "1"
sent: dict[str, float] = {}


def fold(value: list, key: bytes, timestamp: int, headers: object, state: State) -> list[dict]:
    """Add the events of one record to the state of their keys; the rows that are due."""
    grouped: dict[str, list] = {}
    for event in value:
        grouped.setdefault(event.instance, []).append(event)
    rows = []
    now = time.monotonic()
    for name, events in grouped.items():
        total = state.get(name) or empty()
        for event in events:
            add(total, event.cause, event.at_ms, event.output_tokens)
        state.set(name, total)
        if now - sent.get(name, 0.0) >= 0.1:
            sent[name] = now
            rows.append(row(name, total))
    return rows


def main() -> None:
    """Run until killed."""
    app = Application(
        broker_address=os.environ["BROKER"],
        consumer_group=f"bench-{os.environ['SOURCE']}",
        auto_offset_reset="earliest",
        state_dir=os.environ["FOLDER"],
        loglevel="WARNING",
    )
    source = app.topic(os.environ["SOURCE"], value_deserializer="bytes", key_deserializer="bytes")
    sink = app.topic(os.environ["SINK"], value_serializer="json", key_serializer="bytes")
    frame = app.dataframe(source).apply(lambda value: events_of(value, BATCH))
    frame = frame.apply(fold, stateful=True, metadata=True, expand=True)
    frame.to_topic(sink)
    app.run()


if __name__ == "__main__":
    main()
