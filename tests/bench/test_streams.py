"""The streams benchmark feeds what the app takes; its plain loop is what the app and the peers must give."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import bench.streams
from bench.streams.arms import our_row, peer_row
from bench.streams.events import BATCH_HEADER, KEYS, SINGLE_HEADER, Stream, instance_of, partition_of_key
from bench.streams.steady import Freshness, quantile
from bench.streams.table import scrape
from minds.capacity.outcomes import FIELDS, OPTIONAL, OutcomeFold
from schemas.codec import decode_events
from schemas.projections import ProjectedReader
from schemas.topics import OUTCOMES, TELEMETRY

T0 = 1_796_000_000_000
READER = ProjectedReader(OUTCOMES, FIELDS, OPTIONAL)


@pytest.mark.parametrize(("batch", "header"), [(1, SINGLE_HEADER), (50, BATCH_HEADER)])
def test_the_app_folds_what_the_loop_counts(batch: int, header: tuple[str, bytes]) -> None:
    stream, fold = Stream(1), OutcomeFold()
    sizes = []
    for partition, value in stream.records(4_000, batch, T0, 9_000):
        events = READER.events((header,), value)
        assert {partition_of_key(int(event.instance[1:])) for event in events} == {partition}
        assert fold.take(events, T0, T0 + 9_000) == []
        sizes.append(len(value) / len(events))
    assert stream.loop.events == 4_000
    assert 180 < sum(sizes) / len(sizes) < 220
    found: Counter[str] = Counter()
    for (_, instance, *_), tally in fold.tallies.items():
        found[str(instance)] += tally.attempts
    assert all(found[instance_of(key)] == len(stream.loop.at_ms[instance_of(key)]) for key in range(KEYS))


def test_a_full_event_is_a_valid_outcome_and_a_scrape_valid_telemetry() -> None:
    stream = Stream(1, full=True)
    (event,) = decode_events(OUTCOMES, (SINGLE_HEADER,), stream.event(7, T0)).events
    assert (event.instance, event.router) == (instance_of(7), "router-0")
    (told,) = decode_events(TELEMETRY, (("schema", b"telemetry/1"),), scrape(7, T0, 5)).events
    assert told.gauges.kv_usage_ratio.value == 0.5


def test_the_peers_aggregate_is_the_loop() -> None:
    path = Path(bench.streams.__file__).parent / "peers" / "aggregate.py"
    spec = importlib.util.spec_from_file_location("peers_aggregate", path)
    assert spec is not None
    assert spec.loader is not None
    aggregate: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = aggregate  # msgspec looks the annotations up there
    spec.loader.exec_module(aggregate)
    stream, states = Stream(1), {}
    for _, value in stream.records(3_000, 50, T0, 20_000):
        for event in aggregate.events_of(value, True):
            state = states.setdefault(event.instance, aggregate.empty())
            aggregate.add(state, event.cause, event.at_ms, event.output_tokens)
    for instance, state in states.items():
        row = peer_row(b"", json.dumps(aggregate.row(instance, state)).encode())
        assert row is not None
        assert stream.loop.agrees(*row)
        newest = max(slot[0] for slot in state["ring"])
        recent = sum(at // 1000 > newest - 10 for at in stream.loop.at_ms[instance])
        assert aggregate.row(instance, state)["ring"][0] == recent


def test_rows_and_freshness() -> None:
    assert our_row(b"__claim__", b"{}") is None
    assert our_row(b"i", None) is None
    windows = '[{},{},{"attempts":2,"ok":1,"output_tokens":9}]'
    assert our_row(b"i", f'{{"instance":"i","windows":{windows}}}'.encode()) == ("i", 2, 1, 9)
    fresh, name = Freshness(), instance_of(3)
    for number in (3, 4, 3, 3):
        fresh.wrote(0, instance_of(number))
    fresh.appended(0, 1, T0)
    fresh.appended(0, 2, T0 + 10)
    fresh.take((name, 2, 2, 0), T0 + 100)  # rows may be read before the broker's answer to an append is
    fresh.take((name, 2, 2, 0), T0 + 900)
    fresh.take((name, 3, 3, 0), T0 + 150)
    fresh.appended(0, 1, T0 + 20)
    assert fresh.latencies_ms(T0 + 5) == [90, 130]
    assert (quantile([90, 130], 0.5), quantile([90, 130], 0.99)) == (130, 130)
