"""Telemetry events as structs of the fast path: an agent makes hundreds a second, so no pydantic here.

The values were checked by the reader (finite, within their bounds); a test holds that what is made here is
what the models say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.fastpath import struct_of
from schemas.readings import EngineCounters, EngineGauges, Reading
from schemas.telemetry import LatencyTotals, LoraAdapters, Telemetry
from sources.boots import Boot
from sources.discovery.config import EndpointConfig
from sources.engines.histograms import Totals
from sources.engines.mapping import COUNTERS, GAUGES
from sources.engines.reader import EngineSample

_TELEMETRY, _READING = struct_of(Telemetry, False), struct_of(Reading, False)
_GAUGES, _COUNTERS = struct_of(EngineGauges, False), struct_of(EngineCounters, False)
_TOTALS, _ADAPTERS = struct_of(LatencyTotals, False), struct_of(LoraAdapters, False)
_NO_GAUGES, _NO_COUNTERS = _GAUGES(), _COUNTERS()


@dataclass(frozen=True, slots=True)
class Moment:
    """When a scrape was taken and how long it took."""

    at_ms: int
    scrape_ms: float


def telemetry(
    config: EndpointConfig,
    boot: Boot,
    rank: int,
    moment: Moment,
    sample: EngineSample | None,
    latencies: list[Totals] | None = None,
) -> Any:
    """One event (a struct with Telemetry's fields); without a sample the engine did not answer."""
    known = sample is not None
    return _TELEMETRY(
        instance=config.instance,
        boot=boot.name,
        boot_started_at_ms=boot.started_at_ms,
        engine=config.engine,
        rank=rank,
        region=config.region,
        pools=config.pools,
        at_ms=moment.at_ms,
        reachable=known,
        scrape_ms=round(moment.scrape_ms, 3),
        gauges=_GAUGES(**_readings(sample.values, GAUGES)) if sample is not None else _NO_GAUGES,
        counters=_COUNTERS(**_readings(sample.values, COUNTERS)) if sample is not None else _NO_COUNTERS,
        latencies=[
            _TOTALS(name=one.name, bounds_ms=list(one.bounds_ms), counts=list(one.counts), sum_ms=one.sum_ms)
            for one in latencies or ()
        ],
        lora=_lora(sample),
    )


def _readings(values: Mapping[str, float], names: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: _READING(value=values[name], quality="fresh", age_ms=0.0) for name in names if name in values
    }


def _lora(sample: EngineSample | None) -> Any:
    if sample is None or sample.lora is None:
        return None
    lora = sample.lora
    return _ADAPTERS(running=list(lora.running), waiting=list(lora.waiting), slots=lora.slots)
