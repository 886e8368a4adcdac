"""What the tests of the columnar reader share: batches of outcomes, and the decoder that it is held to."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from minds.capacity.outcomes import FIELDS, OPTIONAL, names_are_sound
from schemas.codec import envelope_headers, headers_for
from schemas.outcomes import CAUSES, Outcome
from schemas.projections import ProjectedReader
from schemas.topics import OUTCOMES
from streams.outcome_columns import OutcomeReader, Read
from streams.record_batches import RecordBatch

Headers = list[tuple[str, bytes | None]]
SINGLE, BATCH = headers_for(Outcome), envelope_headers(Outcome)
PROJECTED = ProjectedReader(OUTCOMES, FIELDS, OPTIONAL)
AT_MS = 1_700_000_000_000
BARE = {"pool": "m@v1", "entry_region": "eu", "cause": "ok", "at_ms": AT_MS, "within_slo": True}
FRAME = {"producer": "r", "boot": "b", "seq": 0, "sent_at_ms": AT_MS}


def batch_of(*records: tuple[Headers, bytes | None], compression: int = 0) -> RecordBatch:
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, 0, 1 << 24)
    for offset, (headers, value) in enumerate(records):
        builder.append(offset, timestamp=AT_MS + offset, key=None, value=value, headers=headers)
    raw = bytes(builder.build())
    return RecordBatch(TopicPartition(OUTCOMES.name, 0), DefaultRecordBatch(raw), 0, raw)


def single(event: Any, **json_options: Any) -> tuple[Headers, bytes]:
    return SINGLE, json.dumps(event, **json_options).encode()


def envelope(*events: Any, **frame: Any) -> tuple[Headers, bytes]:
    return BATCH, json.dumps({**FRAME, **frame, "events": events}).encode()


def read_all(batch: RecordBatch, reader: OutcomeReader | None = None) -> Read:
    """Read, and hold every record that is not odd to what the projection's decoder makes of it."""
    reader = reader or OutcomeReader()
    read = reader.read(batch, -math.inf, math.inf, 0)
    at = 0
    for place, record in enumerate(batch.records):
        if place in read.odd:
            continue
        for event in PROJECTED.events(record.headers, record.value):
            assert names_are_sound(event)
            region = event.region if event.region is not None else event.entry_region
            assert reader.names[read.name[at]] == (event.pool, event.instance, event.instance_boot, region)
            assert CAUSES[read.cause[at]] == event.cause
            assert (read.at_ms[at], read.within_slo[at]) == (event.at_ms, event.within_slo)
            for number, told in (
                (read.output_tokens[at], event.output_tokens),
                (read.wasted_tokens[at], event.wasted_tokens),
                (read.deadline_at_ms[at], event.deadline_at_ms),
            ):
                assert number == (-1 if told is None else told)
            for figure, told in (
                (read.ttft_ms[at], event.ttft_ms),
                (read.tpot_ms[at], event.tpot_ms),
                (read.queue_ms[at], event.queue_ms),
                (read.work_tokens[at], event.work_tokens),
            ):
                assert np.isnan(figure) if told is None else float(figure).hex() == float(told).hex()
            at += 1
    assert at == len(read)
    assert read.records == len(batch)
    return read
