"""The rest of what the log tells of an instance: added up together, read together, unknown where not told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from minds.capacity.cache_events import count_kv_event
from minds.capacity.engine_latency import engine_windows, told_of
from minds.capacity.in_flight import count_decision, count_end
from minds.capacity.signals import REFRESH_MS, SignalReadings, SignalsDelta, SignalsTotal, add_signals
from schemas.telemetry import LatencyTotals, Telemetry

T0 = 1_796_000_000_000
BOOT = (T0 - 60_000, "b0")


def latencies(at_ms: int, count: int) -> SignalsDelta:
    event = Telemetry(
        instance="i",
        boot=BOOT[1],
        boot_started_at_ms=BOOT[0],
        engine="vllm",
        region="eu",
        pools=["m@v1"],
        at_ms=at_ms,
        reachable=True,
        latencies=[LatencyTotals(name="ttft", bounds_ms=[10.0], counts=[count, 0], sum_ms=0.0)],
    )
    return SignalsDelta(latencies=told_of(event))


def attempt(work: float = 100.0) -> Any:
    return SimpleNamespace(instance_boot=BOOT[1], at_ms=T0, deadline_at_ms=T0 + 60_000, work_tokens=work)


def decided(*works: float, ended: float | None = None) -> SignalsDelta:
    made = SignalsDelta(in_flight={})
    for work in works:
        count_decision(made.in_flight, attempt(work), T0)
    if ended is not None:
        count_end(made.in_flight, attempt(ended))
    return made


def evicted(at_ms: int) -> SignalsDelta:
    made = SignalsDelta(cache={})
    event = SimpleNamespace(
        boot=BOOT[1], at_ms=at_ms, kind="removed", prefix=SimpleNamespace(blocks=["0"] * 60)
    )
    count_kv_event(made.cache, event)
    return made


def total(*deltas: SignalsDelta) -> SignalsTotal | None:
    made: SignalsTotal | None = None
    for delta in deltas:
        made = add_signals(made, delta, T0)
    return made


def test_closed_and_open_parts_are_read_together() -> None:
    closed = total(latencies(T0 - 11_000, 0), decided(100.0, 50.0), evicted(T0 - 20_000))
    opened = [latencies(T0 - 1_000, 4), decided(ended=50.0), evicted(T0 - 15_000)]
    fields = SignalReadings().fields(closed, opened, BOOT, T0)
    assert fields["engine_windows"][0].ttft_ms.p50 == 5.0
    assert (fields["requests_in_flight"].value, fields["work_tokens_in_flight"].value) == (1.0, 100.0)
    assert (fields["kv_events_at_ms"], fields["kv_evicted_blocks_per_s"].value) == (T0 - 15_000, 2.0)


def test_what_was_not_told_is_unknown() -> None:
    assert SignalReadings().fields(None, [], BOOT, T0) == {}
    fields = SignalReadings().fields(total(latencies(T0, 0)), [], (T0, "another"), T0)
    assert fields["engine_windows"] == []
    assert fields["requests_in_flight"].quality == fields["work_tokens_in_flight"].quality == "unknown"
    assert (fields["kv_events_at_ms"], fields["kv_evicted_blocks_per_s"].quality) == (None, "unknown")


def test_percentiles_are_read_again_after_a_while_and_for_a_new_boot_at_once() -> None:
    closed = total(latencies(T0 - 11_000, 0), latencies(T0 - 1_000, 4))
    readings = SignalReadings()
    first = readings.fields(closed, [], BOOT, T0)["engine_windows"]
    later = [latencies(T0 + 500, 9)]
    assert readings.fields(closed, later, BOOT, T0 + 1_000)["engine_windows"] == first
    now_ms = T0 + REFRESH_MS[0]
    assert closed is not None
    assert (
        readings.fields(closed, later, BOOT, now_ms)["engine_windows"][0]
        == engine_windows(closed.latencies, [later[0].latencies], BOOT, now_ms)[0]
    )
    assert readings.fields(closed, later, (T0, "b1"), now_ms)["engine_windows"] == []


def test_a_delta_is_as_small_on_the_wire_as_what_it_tells() -> None:
    assert msgspec.json.encode(SignalsDelta()) == b"{}"
    delta = decided(100.0)
    assert msgspec.json.decode(msgspec.json.encode(delta), type=SignalsDelta) == delta
    kept = total(latencies(T0, 1), delta, evicted(T0))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=SignalsTotal) == kept
