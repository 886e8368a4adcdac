"""Telemetry as registers: the newest value wins, so that reading a sample twice changes nothing.

A register belongs to one engine rank and one boot; a newer boot replaces it whole, since counters and cache
state never survive one. Gauges keep their newest *known* value with the time at which it was true: a failed
scrape ages a reading, it does not erase it. Counters keep the last sample of each second, for rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from minds.capacity.plausible import impossible_reading
from minds.staleness import quality_of
from schemas.fastpath import struct_of
from schemas.readings import EngineCounters, EngineGauges, Reading

READING_VALID_MS = 3_000.0
"""Engines are scraped about once a second: older than this is stale, than twice this unknown."""
SAMPLE_MS = 1_000
SAMPLES = 15
RATE_SPAN_MS = 12_000
GAUGES = tuple(EngineGauges.model_fields)
COUNTERS = tuple(EngineCounters.model_fields)
_Reading, _Gauges = struct_of(Reading), struct_of(EngineGauges)
UNKNOWN: Any = _Reading()
_MEANS = ("kv_usage_ratio",)
_SAME = ("kv_block_tokens",)


class Known(msgspec.Struct, array_like=True, frozen=True, order=True):
    """A gauge's value and when it was true (the scrape's time less the reading's age)."""

    true_at_ms: float
    value: float


class Sample(msgspec.Struct, array_like=True, frozen=True):
    """The counters of one scrape; unknown ones are absent."""

    at_ms: int
    totals: dict[str, float]


class RankRegister(msgspec.Struct):
    """What one rank of an engine said of itself, in its newest boot. Times in epoch milliseconds."""

    boot_started_at_ms: int
    boot: str
    at_ms: int
    reachable: bool
    engine: str
    region: str
    pools: list[str]
    gauges: dict[str, Known] = {}
    samples: dict[int, Sample] = {}
    impossible: tuple[int, str] = (0, "")
    """When it last said what can't be true, and what."""


Ranks = dict[int, RankRegister]


def register_of(event: Any) -> RankRegister:
    """The register that one telemetry event (schemas.telemetry.Telemetry or its struct) amounts to.

    One that says something impossible counts only as having said that: its time is 0, so that it neither
    renews nor replaces what was known.
    """
    if (wrong := impossible_reading(event)) is not None:
        return RankRegister(
            boot_started_at_ms=event.boot_started_at_ms,
            boot=event.boot,
            at_ms=0,
            reachable=event.reachable,
            engine=event.engine,
            region=event.region,
            pools=list(event.pools),
            impossible=(event.at_ms, wrong),
        )
    gauges = {}
    for name in GAUGES:
        reading = getattr(event.gauges, name)
        if reading.value is not None and reading.quality != "unknown":
            gauges[name] = Known(event.at_ms - (reading.age_ms or 0.0), reading.value)
    totals = {}
    for name in COUNTERS:
        reading = getattr(event.counters, name)
        if reading.value is not None and reading.quality == "fresh":
            totals[name] = reading.value
    samples = {event.at_ms // SAMPLE_MS: Sample(event.at_ms, totals)} if totals else {}
    return RankRegister(
        boot_started_at_ms=event.boot_started_at_ms,
        boot=event.boot,
        at_ms=event.at_ms,
        reachable=event.reachable,
        engine=event.engine,
        region=event.region,
        pools=list(event.pools),
        gauges=gauges,
        samples=samples,
    )


def join_ranks(ranks: Ranks, others: Ranks) -> None:
    """Join registers rank by rank, in place; idempotent, and the order never matters."""
    for rank, other in others.items():
        mine = ranks.get(rank)
        if mine is None or _boot(other) > _boot(mine):
            ranks[rank] = msgspec.structs.replace(
                other, gauges=dict(other.gauges), samples=dict(other.samples)
            )
        elif _boot(other) == _boot(mine):
            _join(mine, other)


def forget_old_samples(ranks: Ranks, mark_ms: int) -> None:
    """Drop the counter samples from before the last 15 s up to the record time ``mark_ms``."""
    first = mark_ms // SAMPLE_MS - SAMPLES + 1
    for register in ranks.values():
        for slot in [slot for slot in register.samples if slot < first]:
            del register.samples[slot]


def _boot(register: RankRegister) -> tuple[int, str]:
    return register.boot_started_at_ms, register.boot


def _join(mine: RankRegister, other: RankRegister) -> None:
    if _said(other) > _said(mine):
        mine.at_ms, mine.reachable, mine.engine = other.at_ms, other.reachable, other.engine
        mine.region, mine.pools = other.region, other.pools
    mine.impossible = max(mine.impossible, other.impossible)
    for name, known in other.gauges.items():
        held = mine.gauges.get(name)
        if held is None or known > held:
            mine.gauges[name] = known
    for slot, sample in other.samples.items():
        seen = mine.samples.get(slot)
        if seen is None or _order(sample) > _order(seen):
            mine.samples[slot] = sample


def _said(register: RankRegister) -> tuple[int, bool, str, str, list[str]]:
    return register.at_ms, register.reachable, register.engine, register.region, register.pools


def _order(sample: Sample) -> tuple[int, list[tuple[str, float]]]:
    return sample.at_ms, sorted(sample.totals.items())


# --------------------------------------------------------------------------------------------- readings


def reading_of(value: float | None, age_ms: float | None) -> Any:
    """A reading (struct of schemas.readings.Reading) of this value at this age; unknown without a value or
    once it is too old."""
    if value is None or age_ms is None:
        return UNKNOWN
    quality = quality_of(age_ms, READING_VALID_MS)
    if quality == "unknown":
        return UNKNOWN
    return _Reading(value=float(value), quality=quality, age_ms=max(0.0, float(age_ms)))


def gauges_of(ranks: Iterable[RankRegister], now_ms: int) -> Any:
    """The engine's gauges over its ranks: counts add up, the KV usage is the mean weighted by capacity.

    A gauge is as old as its oldest rank's, and unknown where any rank's is: a part would understate it.
    """
    parts = list(ranks)
    if not parts:
        return NO_GAUGES
    return _Gauges(**{name: _over_ranks(name, parts, now_ms) for name in GAUGES})


NO_GAUGES: Any = _Gauges()


def _over_ranks(name: str, ranks: list[RankRegister], now_ms: int) -> Any:
    if len(ranks) == 1:
        only = ranks[0].gauges.get(name)
        return UNKNOWN if only is None else reading_of(only.value, now_ms - only.true_at_ms)
    known = [register.gauges.get(name) for register in ranks]
    values = [(entry.value, now_ms - entry.true_at_ms) for entry in known if entry is not None]
    if not values or len(values) < len(ranks):
        return UNKNOWN
    age_ms = max(age for _, age in values)
    if name in _SAME:
        return reading_of(values[0][0], age_ms)
    if name in _MEANS:
        capacities = [register.gauges.get("kv_capacity_tokens") for register in ranks]
        weights = [entry.value if entry is not None else 0.0 for entry in capacities]
        if not all(weights):
            weights = [1.0] * len(ranks)
        mean = sum(v * w for (v, _), w in zip(values, weights, strict=True)) / sum(weights)
        return reading_of(mean, age_ms)
    return reading_of(sum(value for value, _ in values), age_ms)


def rates_of(ranks: Iterable[RankRegister], now_ms: int) -> dict[str, tuple[float, float]]:
    """Each counter's rate per second and its age in ms, summed over ranks, over the last 12 s of samples.

    A fall within a boot is a reset: what was counted since counts, as Prometheus' ``rate`` does it; never
    negative. Counters with fewer than two samples in any rank are absent (unknown).
    """
    parts = list(ranks)
    found: dict[str, tuple[float, float]] = {}
    told = {name for register in parts for sample in register.samples.values() for name in sample.totals}
    for name in told:
        each = [_rate(name, register.samples, now_ms) for register in parts]
        known = [rate for rate in each if rate is not None]
        if known and len(known) == len(parts):
            found[name] = (sum(rate for rate, _ in known), max(age for _, age in known))
    return found


def _rate(name: str, samples: dict[int, Sample], now_ms: int) -> tuple[float, float] | None:
    points = [
        (sample.at_ms, total)
        for sample in samples.values()
        if (total := sample.totals.get(name)) is not None and now_ms - sample.at_ms <= RATE_SPAN_MS
    ]
    if len(points) < 2:
        return None
    points.sort()
    first_ms, last_ms = points[0][0], points[-1][0]
    if last_ms <= first_ms:
        return None
    grown = 0.0
    before = points[0][1]
    for _, total in points:
        grown += total - before if total >= before else total
        before = total
    return grown * 1000.0 / (last_ms - first_ms), float(now_ms - last_ms)
