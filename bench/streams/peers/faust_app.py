"""A naive Faust agent: an event at a time, a table, changed rows published by a timer of 100 ms.

Settings that cost nothing to know are set: the producer's buffer and linger, logging at INFO (WARN would turn
on debug logging), a topic that exists. BROKER, SOURCE, SINK and BATCH come from the environment.
"""

from __future__ import annotations

import os
import sys

import faust

sys.path.insert(0, os.path.dirname(__file__))
from aggregate import add, empty, row

app = faust.App(
    f"bench-{os.environ['SOURCE']}",
    broker=f"kafka://{os.environ['BROKER']}",
    store="memory://",
    datadir=os.environ["FOLDER"],
    web_enabled=False,
    topic_partitions=4,
    producer_linger=0.05,
    stream_wait_empty=False,
    consumer_auto_offset_reset="earliest",
)
source = app.topic(os.environ["SOURCE"], value_type=bytes, value_serializer="raw", key_serializer="raw")
sink = app.topic(os.environ["SINK"], value_serializer="json")
table = app.Table("totals", partitions=4)
changed: set[str] = set()


@app.agent(source)
async def aggregate(stream: faust.StreamT) -> None:
    """Fold every event of every record."""
    import orjson

    async for value in stream:
        record = orjson.loads(value)
        for event in record.get("events", [record]):
            state = table.get(event["instance"]) or empty()
            add(state, event["cause"], event["at_ms"], event.get("output_tokens") or 0)
            table[event["instance"]] = state
            changed.add(event["instance"])


@app.timer(0.1)
async def publish() -> None:
    """Send the rows of changed keys."""
    keys = list(changed)
    changed.clear()
    for key in keys:
        await sink.send(key=key, value=row(key, table[key]))


@app.task
async def buffer() -> None:
    """A larger buffer: the default makes every send wait."""
    app.producer.buffer.max_messages = 10_000


if __name__ == "__main__":
    app.main()
