"""While the broker is away telemetry is rolled up by the second: bounded, oldest first to go, counted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_events, envelope_headers
from schemas.envelopes import Envelope
from schemas.fastpath import encode, struct_of
from schemas.telemetry import Telemetry
from schemas.topics import TELEMETRY
from sources.boots import Boot
from sources.buffer import RollupBuffer
from sources.discovery.config import EndpointConfig
from sources.engines.histograms import Totals
from sources.engines.labels import Adapters
from sources.engines.reader import EngineSample
from sources.outbox import CONGESTED_EVENTS, DRAIN_EVENTS, TelemetryOutbox
from sources.telemetry import Moment, telemetry

T = 1_795_990_000_000
CONFIG = EndpointConfig.model_validate(
    {"instance": "eu-0", "engine": "vllm", "url": "http://h:1", "region": "eu", "pools": ["a@1", "b@2"]}
)
BOOT = Boot("b1", T - 9000)
VALUES = {"requests_running": 3.0, "kv_usage_ratio": 0.5, "generation_tokens_total": 77.0}
TTFT = Totals("ttft", (10.0, 20.0), (1, 2, 3), 99.5, "x:ttft")
ITL = Totals("itl", (5.0,), (7, 0), 12.0, "x:itl")


def _event(
    at_ms: int = T, *, rank: int = 0, latencies: list[Totals] | None = None, known: bool = True
) -> Any:
    lora = Adapters(("sql",), (), 4)
    sample = EngineSample(rank, "m", dict(VALUES), None, lora=lora) if known else None
    return telemetry(CONFIG, BOOT, rank, Moment(at_ms, 2.5), sample, latencies)


def test_what_the_fast_path_makes_is_what_the_models_say() -> None:
    for event in (_event(latencies=[TTFT]), _event(known=False)):
        model = Telemetry.model_validate_json(encode(event))
        assert (model.instance, model.pools, model.boot) == ("eu-0", ["a@1", "b@2"], "b1")
        assert model.reachable == bool(model.gauges.requests_running.value)
        assert model.counters.prompt_tokens_total.quality == "unknown"
    assert model.gauges.kv_usage_ratio.value is None
    model = Telemetry.model_validate_json(encode(_event(latencies=[TTFT])))
    assert (model.gauges.requests_running.value, model.gauges.requests_running.quality) == (3.0, "fresh")
    assert model.latencies[0].model_dump() == {
        "name": "ttft",
        "bounds_ms": [10.0, 20.0],
        "counts": [1, 2, 3],
        "sum_ms": 99.5,
    }
    assert model.lora is not None
    assert (model.lora.running, model.lora.slots) == (["sql"], 4)


def test_an_envelope_of_structs_reads_like_any_other() -> None:
    envelope = struct_of(Envelope[Telemetry], False)(
        producer="source-0", boot="b", seq=0, sent_at_ms=T, events=[_event(), _event(known=False)]
    )
    decoded = decode_events(TELEMETRY, tuple(envelope_headers(Telemetry)), encode(envelope))
    assert [event.reachable for event in decoded.events] == [True, False]
    assert decoded.events[0].counters.generation_tokens_total.value == 77.0


def test_a_second_of_an_engine_is_its_newest_event_with_all_latencies() -> None:
    buffer = RollupBuffer(10)
    buffer.add(_event(T, latencies=[TTFT]))
    buffer.add(_event(T + 250, latencies=[ITL]))
    buffer.add(_event(T + 750))
    buffer.add(_event(T + 900, rank=1))
    buffer.add(_event(T + 1000))
    events = buffer.take(99)
    assert [(event.rank, event.at_ms) for event in events] == [(0, T + 750), (1, T + 900), (0, T + 1000)]
    assert {totals.name for totals in events[0].latencies} == {"ttft", "itl"}
    assert (len(buffer), buffer.dropped) == (0, 0)


@given(seconds=st.lists(st.integers(0, 40), max_size=80), limit=st.integers(1, 12))
def test_the_oldest_rollups_go_first_and_each_is_counted(seconds: list[int], limit: int) -> None:
    buffer = RollupBuffer(limit)
    order: list[int] = []
    dropped = 0
    for second in seconds:
        if second not in order:
            order.append(second)
        buffer.add(_event(T + second * 1000))
        while len(order) > limit:
            order.pop(0)
            dropped += 1
        assert len(buffer) == len(order) <= limit
    assert buffer.dropped == dropped
    assert [(event.at_ms - T) // 1000 for event in buffer.take(99)] == order


class Producer:
    """What the outbox needs of transport.producer.EventProducer."""

    def __init__(self) -> None:
        self.waiting, self.healthy, self.dropped = 0, True, 0
        self.sent: list[Any] = []

    def emit(self, _: object, event: Any) -> None:
        self.sent.append(event)


def test_it_sends_rolls_up_and_drains() -> None:
    producer = Producer()
    outbox = TelemetryOutbox(producer, buffer_events=3)  # type: ignore[arg-type]
    outbox.put([_event(T)])
    assert len(producer.sent) == 1
    producer.waiting = CONGESTED_EVENTS
    for number in range(5):
        outbox.put([_event(T + 1000 * number)])
    assert (len(producer.sent), outbox.buffered, outbox.dropped, outbox.healthy) == (1, 3, 2, False)
    assert outbox.waiting == CONGESTED_EVENTS + 3
    producer.waiting, producer.healthy = DRAIN_EVENTS, False
    outbox.put([_event(T + 9000)])
    assert outbox.dropped == 3
    producer.healthy = True
    outbox.put([_event(T + 9250)])
    assert (len(producer.sent), outbox.buffered, outbox.healthy) == (2, 3, True), "what is new goes first"
    producer.waiting = 0
    outbox.put([_event(T + 9500)])
    assert [event.at_ms - T for event in producer.sent[1:]] == [9250, 9500, 3000, 4000, 9000]
    assert outbox.buffered == 0


def test_closing_hands_over_all_that_is_held() -> None:
    producer = Producer()
    outbox = TelemetryOutbox(producer, buffer_events=9)  # type: ignore[arg-type]
    producer.healthy = False
    outbox.put([_event(T), _event(T + 1000)])
    assert producer.sent == []
    outbox.close()
    assert len(producer.sent) == 2
