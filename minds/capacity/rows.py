"""Rows from values: what routers and operators see of an instance, and of a region and pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minds.capacity.folds import Value
from minds.capacity.registers import READING_VALID_MS, RankRegister, gauges_of, rates_of, reading_of
from minds.staleness import quality_of
from minds.windows import Rings, window_stats
from schemas.readings import UNKNOWN, Quality, Reading
from schemas.tables import InstanceRow, InstanceState, RegionRow

ROW_VALID_MS = 3_000.0
SILENT_LEAVES_MS = 60_000.0
"""An instance of which neither registry nor telemetry has said anything for so long has left."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every row of one publication carries."""

    now_ms: int
    epoch: int
    version: int


def current_ranks(endpoint: Any, value: Value | None) -> list[RankRegister]:
    """The registers of the instance's newest boot: the registry's, or a newer one that telemetry knows."""
    if value is None:
        return []
    registered = (endpoint.boot_started_at_ms, endpoint.boot)
    boots = [(r.boot_started_at_ms, r.boot) for r in value.ranks.values()]
    newest = max([registered, *boots])
    return [r for _, r in sorted(value.ranks.items()) if (r.boot_started_at_ms, r.boot) == newest]


def instance_state(endpoint: Any, ranks: Sequence[RankRegister], now_ms: int) -> InstanceState:
    """What can be said of an instance now.

    ``draining`` as its registry row says; ``unreachable`` where the newest word, the registry's or a
    scrape's, is that it did not answer; else by the age of its oldest rank's telemetry: ``ready`` while
    fresh, ``degraded`` while stale, ``unknown`` beyond, and where the current boot has sent none.
    """
    if endpoint.draining:
        return "draining"
    words = [(r.at_ms, r.reachable) for r in ranks]
    if not max([*words, (endpoint.as_of_ms, endpoint.reachable)])[1]:
        return "unreachable"
    if not ranks:
        return "unknown"
    quality = quality_of(now_ms - min(r.at_ms for r in ranks), READING_VALID_MS)
    return {"fresh": "ready", "stale": "degraded", "unknown": "unknown"}[quality]  # type: ignore[return-value]


def has_left(endpoint: Any, value: Value | None, now_ms: int) -> bool:
    """Whether an instance has been silent for so long that its row is removed."""
    heard = max([r.at_ms for r in value.ranks.values()], default=0) if value is not None else 0
    return bool(now_ms - max(heard, endpoint.as_of_ms) > SILENT_LEAVES_MS)


def instance_row(endpoint: Any, value: Value | None, stamp: Stamp) -> InstanceRow:
    """The row of one instance, of its current boot only.

    ``endpoint`` is its schemas.endpoints.EndpointRow (or struct). Prefill counts prompt tokens that no cache
    saved where the engine tells them apart. Outcomes that name no boot count for the current one.
    """
    ranks = current_ranks(endpoint, value)
    started, boot = max(
        [(r.boot_started_at_ms, r.boot) for r in ranks] or [(endpoint.boot_started_at_ms, endpoint.boot)]
    )
    rates = rates_of(ranks, stamp.now_ms)
    rings = [ring for of, ring in value.rings if of in ("", boot)] if value is not None else []
    return InstanceRow(
        as_of_ms=stamp.now_ms,
        valid_for_ms=ROW_VALID_MS,
        epoch=stamp.epoch,
        version=stamp.version,
        instance=endpoint.instance,
        boot=boot,
        boot_started_at_ms=started,
        engine=endpoint.engine,
        region=endpoint.region,
        pools=list(endpoint.pools),
        state=instance_state(endpoint, ranks, stamp.now_ms),
        sampled_at_ms=min((r.at_ms for r in ranks), default=None),
        gauges=gauges_of(ranks, stamp.now_ms),
        prefill_tokens_per_s=_difference(rates, "prompt_tokens_total", "prompt_tokens_cached_total"),
        decode_tokens_per_s=_rate(rates, "generation_tokens_total"),
        prefix_hit_ratio=_ratio(rates, "prefix_hits_tokens_total", "prefix_queries_tokens_total"),
        preemptions_per_s=_rate(rates, "preemptions_total"),
        windows=window_stats(rings, stamp.now_ms),
        late_events=value.late if value is not None else 0,
    )


def _rate(rates: dict[str, tuple[float, float]], name: str) -> Reading:
    return reading_of(*rates.get(name, (None, None)))


def _difference(rates: dict[str, tuple[float, float]], name: str, less: str) -> Reading:
    rate, age_ms = rates.get(name, (None, None))
    if rate is None:
        return UNKNOWN
    return reading_of(max(0.0, rate - rates.get(less, (0.0, 0.0))[0]), age_ms)


def _ratio(rates: dict[str, tuple[float, float]], part: str, whole: str) -> Reading:
    hits, queries = rates.get(part), rates.get(whole)
    if hits is None or queries is None or queries[0] <= 0:
        return UNKNOWN
    return reading_of(min(1.0, hits[0] / queries[0]), queries[1])


@dataclass(frozen=True, slots=True)
class Member:
    """One instance as its region counts it. ``row`` is None where it is no longer registered there."""

    row: InstanceRow | None
    value: Value | None


@dataclass(frozen=True, slots=True)
class Grants:
    """What the grantor says of a region and pool; a cap of None is no cap."""

    cap_work_tokens: float | None
    leased_work_tokens: float
    exposed_work_tokens: float


def region_row(
    region: str,
    pool: str,
    members: Sequence[Member],
    shed: Value | None,
    grants: Grants | None,
    stamp: Stamp,
) -> RegionRow:
    """The row of one region and pool: only members whose registry row lists exactly this pool are known.

    Readings are sums (the KV usage: a mean) over members that are ready or degraded, of the readings known
    among them; unknown only where none is, and as old and as good as the worst of those that count. Windows
    merge all boots of all instances, gone ones too, and the outcomes that no instance saw.
    """
    registered = [member.row for member in members if member.row is not None]
    serving = [row for row in registered if row.state in ("ready", "degraded")]
    rings: list[Rings] = [ring for m in members if m.value is not None for _, ring in m.value.rings]
    if shed is not None:
        rings += [ring for _, ring in shed.rings]
    capped = grants is not None and grants.cap_work_tokens is not None
    return RegionRow(
        as_of_ms=stamp.now_ms,
        valid_for_ms=ROW_VALID_MS,
        epoch=stamp.epoch,
        version=stamp.version,
        region=region,
        pool=pool,
        ready_endpoints=sum(row.state == "ready" for row in registered),
        known_endpoints=len(registered),
        requests_running=_sum(row.gauges.requests_running for row in serving),
        requests_waiting=_sum(row.gauges.requests_waiting for row in serving),
        kv_usage_ratio=_sum((row.gauges.kv_usage_ratio for row in serving), mean=True),
        prefill_tokens_per_s=_sum(row.prefill_tokens_per_s for row in serving),
        decode_tokens_per_s=_sum(row.decode_tokens_per_s for row in serving),
        cap_work_tokens=_fresh(grants.cap_work_tokens if grants else None),
        leased_work_tokens=_fresh(grants.leased_work_tokens if grants and capped else None),
        headroom_work_tokens=_fresh(
            max(0.0, grants.cap_work_tokens - grants.exposed_work_tokens)
            if grants is not None and grants.cap_work_tokens is not None
            else None
        ),
        windows=window_stats(rings, stamp.now_ms),
    )


def _fresh(value: float | None) -> Reading:
    return UNKNOWN if value is None else Reading(value=value, quality="fresh", age_ms=0.0)


_WORSE: dict[Quality, int] = {"fresh": 0, "stale": 1, "unknown": 2}


def _sum(readings: Iterable[Reading], *, mean: bool = False) -> Reading:
    known = [reading for reading in readings if reading.value is not None]
    if not known:
        return UNKNOWN
    total = sum(reading.value for reading in known if reading.value is not None)
    return Reading(
        value=total / len(known) if mean else total,
        quality=max((reading.quality for reading in known), key=_WORSE.__getitem__),
        age_ms=max(reading.age_ms or 0.0 for reading in known),
    )
