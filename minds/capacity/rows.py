"""Rows from values: what routers and operators see of an instance, and of a region and pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minds.capacity.gpu_health import UNKNOWN_HEALTH, GpuTable
from minds.capacity.live import Live
from minds.capacity.registers import READING_VALID_MS, UNKNOWN, RankRegister, gauges_of, reading_of
from minds.staleness import quality_of
from schemas.fastpath import struct_of
from schemas.readings import Quality
from schemas.tables import InstanceRow, InstanceState, RegionRow

_InstanceRow, _RegionRow = struct_of(InstanceRow), struct_of(RegionRow)
ROW_VALID_MS = 3_000.0
QUIET_VALID_MS = 60_000.0
"""Of rows that nothing but news can change: all readings unknown, all windows empty."""
CEILING = 0.85
"""Of the knee: what a region takes before traffic is sent elsewhere."""
SILENT_LEAVES_MS = 60_000.0
"""An instance of which neither registry nor telemetry has said anything for so long has left."""


class Stamp(NamedTuple):
    """What every row of one publication carries."""

    now_ms: int
    epoch: int
    version: int


def current_ranks(endpoint: Any, live: Live | None) -> list[RankRegister]:
    """The registers of the instance's newest boot: the registry's, or a newer one that telemetry knows."""
    if live is None or not live.ranks:
        return []
    registered = (endpoint.boot_started_at_ms, endpoint.boot)
    boots = [(r.boot_started_at_ms, r.boot) for r in live.ranks.values()]
    newest = max([registered, *boots])
    return [r for _, r in sorted(live.ranks.items()) if (r.boot_started_at_ms, r.boot) == newest]


def instance_state(endpoint: Any, ranks: Sequence[RankRegister], now_ms: int) -> InstanceState:
    """What can be said of an instance now.

    ``draining`` as its registry row says; ``unreachable`` where the newest word, the registry's or a
    scrape's, is that it did not answer; else by the age of its oldest rank's telemetry: ``ready`` while
    fresh, ``degraded`` while stale, ``unknown`` beyond, and where the current boot has sent none.
    """
    if endpoint.draining:
        return "draining"
    if not ranks:
        return "unknown" if endpoint.reachable else "unreachable"
    words = [(r.at_ms, r.reachable) for r in ranks]
    if not max([*words, (endpoint.as_of_ms, endpoint.reachable)])[1]:
        return "unreachable"
    quality = quality_of(now_ms - min(r.at_ms for r in ranks), READING_VALID_MS)
    return {"fresh": "ready", "stale": "degraded", "unknown": "unknown"}[quality]  # type: ignore[return-value]


def heard_at_ms(endpoint: Any, live: Live | None) -> int:
    """When registry or telemetry last said anything of an instance."""
    heard_ms = live.heard_at_ms if live is not None else 0
    return max(heard_ms, int(endpoint.as_of_ms))


def has_left(heard_ms: int, now_ms: int) -> bool:
    """Whether an instance last heard of then has been silent for so long that its row is removed."""
    return now_ms - heard_ms > SILENT_LEAVES_MS


def instance_row(endpoint: Any, live: Live | None, stamp: Stamp, gpus: GpuTable | None = None) -> Any:
    """The row of one instance (a struct of schemas.tables.InstanceRow), of its current boot only.

    ``endpoint`` is its schemas.endpoints.EndpointRow (or struct). Prefill counts prompt tokens that no cache
    saved where the engine tells them apart. Outcomes that name no boot count for the current one.
    """
    now_ms = stamp.now_ms
    ranks = current_ranks(endpoint, live)
    started, boot = endpoint.boot_started_at_ms, endpoint.boot
    if ranks:
        started, boot = ranks[0].boot_started_at_ms, ranks[0].boot
    windows: list[Any]
    rates: dict[str, tuple[float, float]] = {}
    late = 0
    if live is None:
        windows = NO_STATS
    else:
        live.of_boots(("", boot))
        windows = live.stats(now_ms)
        rates = live.rates(ranks, now_ms) if ranks else {}
        late = live.late
    signals = live.signals((started, boot), now_ms) if live is not None else {}
    state = instance_state(endpoint, ranks, now_ms)
    gauges = gauges_of(ranks, now_ms)
    quiet = state in ("unknown", "unreachable") and not windows[-1].attempts
    return _InstanceRow(
        as_of_ms=now_ms,
        valid_for_ms=QUIET_VALID_MS if quiet else ROW_VALID_MS,
        epoch=stamp.epoch,
        version=stamp.version,
        instance=endpoint.instance,
        boot=boot,
        boot_started_at_ms=started,
        engine=endpoint.engine,
        region=endpoint.region,
        pools=endpoint.pools,
        state=state,
        sampled_at_ms=(min([r.at_ms for r in ranks]) or None) if ranks else None,
        gauges=gauges,
        prefill_tokens_per_s=_difference(rates, "prompt_tokens_total", "prompt_tokens_cached_total", now_ms),
        decode_tokens_per_s=_rate(rates, "generation_tokens_total", now_ms),
        prefix_hit_ratio=_ratio(rates, "prefix_hits_tokens_total", "prefix_queries_tokens_total", now_ms),
        preemptions_per_s=_rate(rates, "preemptions_total", now_ms),
        kv_used_tokens=_share(gauges.kv_usage_ratio, gauges.kv_capacity_tokens, of_used=True),
        kv_free_tokens=_share(gauges.kv_usage_ratio, gauges.kv_capacity_tokens, of_used=False),
        quarantined=live is not None and live.quarantined(now_ms) is not None,
        windows=windows,
        late_events=late,
        gpu_health=gpus.health_of(endpoint.host, endpoint.gpus, now_ms) if gpus else UNKNOWN_HEALTH,
        **signals,
    )


def _share(usage: Any, capacity: Any, *, of_used: bool) -> Any:
    """Tokens used or free, as old and as good as the worse of its two readings."""
    if usage.value is None or capacity.value is None:
        return UNKNOWN
    share = usage.value if of_used else 1.0 - usage.value
    return reading_of(share * capacity.value, max(usage.age_ms or 0.0, capacity.age_ms or 0.0))


Rates = dict[str, tuple[float, float]]
"""Each counter's rate and the time of its newest sample."""


def _rate(rates: Rates, name: str, now_ms: int) -> Any:
    found = rates.get(name)
    return UNKNOWN if found is None else reading_of(found[0], now_ms - found[1])


def _difference(rates: Rates, name: str, less: str, now_ms: int) -> Any:
    found = rates.get(name)
    if found is None:
        return UNKNOWN
    return reading_of(max(0.0, found[0] - rates.get(less, (0.0, 0.0))[0]), now_ms - found[1])


def _ratio(rates: Rates, part: str, whole: str, now_ms: int) -> Any:
    hits, queries = rates.get(part), rates.get(whole)
    if hits is None or queries is None or queries[0] <= 0:
        return UNKNOWN
    return reading_of(min(1.0, hits[0] / queries[0]), now_ms - queries[1])


@dataclass(frozen=True, slots=True)
class Grants:
    """What the grantor says of a region and pool; a cap of None is no cap."""

    cap_work_tokens: float | None
    leased_work_tokens: float
    exposed_work_tokens: float


@dataclass(frozen=True, slots=True)
class Members:
    """What a region and pool's instances come to: only those whose registry row lists exactly this pool.

    Readings are sums (the KV usage: a mean) over members that are ready or degraded, of the readings known
    among them; unknown only where none is, and as old and as good as the worst of those that count.
    """

    states: list[InstanceState]
    readings: dict[str, Any]
    knee_tokens_per_s: Any = UNKNOWN

    @property
    def ready(self) -> int:
        """How many are ready."""
        return self.states.count("ready")


def members_of(rows: Sequence[Any], knees: Mapping[str, float | None] | None = None) -> Members:
    """Sum the instance rows of one region and pool. ``knees``: ``Live.knee_tokens_per_s`` by instance."""
    serving = [row for row in rows if row.state in ("ready", "degraded")]
    return Members(
        [row.state for row in rows],
        {
            "requests_running": _sum([row.gauges.requests_running for row in serving]),
            "requests_waiting": _sum([row.gauges.requests_waiting for row in serving]),
            "kv_usage_ratio": _sum([row.gauges.kv_usage_ratio for row in serving], mean=True),
            "prefill_tokens_per_s": _sum([row.prefill_tokens_per_s for row in serving]),
            "decode_tokens_per_s": _sum([row.decode_tokens_per_s for row in serving]),
            "kv_used_tokens": _sum([row.kv_used_tokens for row in serving]),
            "kv_free_tokens": _sum([row.kv_free_tokens for row in serving]),
            "requests_in_flight": _sum([row.requests_in_flight for row in serving]),
            "work_tokens_in_flight": _sum([row.work_tokens_in_flight for row in serving]),
            "staleness_ms": _fresh(
                max([row.as_of_ms - row.sampled_at_ms for row in serving if row.sampled_at_ms], default=None)
            ),
        },
        _knee([knees.get(row.instance) for row in serving] if knees is not None else []),
    )


def _knee(rates: Sequence[float | None]) -> Any:
    """The sum over instances, or unknown where any has not been seen at its knee: a part would understate."""
    known = [rate for rate in rates if rate is not None]
    return _fresh(sum(known)) if known and len(known) == len(rates) else UNKNOWN


def _scaled(reading: Any, factor: float) -> Any:
    return UNKNOWN if reading.value is None else reading_of(reading.value * factor, reading.age_ms or 0.0)


def predicted_wait(waiting: Any, decode_tokens_per_s: Any, minute: Any) -> Any:
    """How long the requests that wait will take to be served, in ms: unknown where any part of it is.

    ``minute`` is the minute's window: its mean of output tokens an attempt stands for those of the next ones.
    """
    if waiting.value is None:
        return UNKNOWN
    if waiting.value == 0:
        return waiting
    rate = decode_tokens_per_s.value
    if not rate or not minute.attempts or not minute.output_tokens:
        return UNKNOWN
    wait_ms = waiting.value * minute.output_tokens / minute.attempts / rate * 1000.0
    return reading_of(wait_ms, max(waiting.age_ms or 0.0, decode_tokens_per_s.age_ms or 0.0))


def region_row(
    region: str,
    pool: str,
    members: Members,
    live: Live | None,
    grants: Grants | None,
    stamp: Stamp,
    links: Sequence[Any] = (),
) -> Any:
    """The row of one region and pool (a struct of schemas.tables.RegionRow).

    ``live`` is the region's own key: windows over all outcomes there, of whatever boot or instance, gone ones
    and those that reached none included.
    """
    capped = grants is not None and grants.cap_work_tokens is not None
    windows = live.stats(stamp.now_ms) if live is not None else NO_STATS
    readings = members.readings
    return _RegionRow(
        as_of_ms=stamp.now_ms,
        valid_for_ms=ROW_VALID_MS,
        epoch=stamp.epoch,
        version=stamp.version,
        region=region,
        pool=pool,
        ready_endpoints=members.ready,
        known_endpoints=len(members.states),
        cap_work_tokens=_fresh(grants.cap_work_tokens if grants else None),
        leased_work_tokens=_fresh(grants.leased_work_tokens if grants and capped else None),
        headroom_work_tokens=_fresh(
            max(0.0, grants.cap_work_tokens - grants.exposed_work_tokens)
            if grants is not None and grants.cap_work_tokens is not None
            else None
        ),
        knee_tokens_per_s=members.knee_tokens_per_s,
        ceiling_tokens_per_s=_scaled(members.knee_tokens_per_s, CEILING),
        predicted_wait_ms=predicted_wait(
            readings["requests_waiting"], readings["decode_tokens_per_s"], windows[1]
        ),
        windows=windows,
        links=list(links),
        **readings,
    )


NO_STATS = Live().stats(0)
"""Of a key that has had no outcomes: the windows are empty whatever the time."""


def _fresh(value: float | None) -> Any:
    return UNKNOWN if value is None else reading_of(value, 0.0)


_WORSE: dict[Quality, int] = {"fresh": 0, "stale": 1, "unknown": 2}


def _sum(readings: Iterable[Any], *, mean: bool = False) -> Any:
    known = [reading for reading in readings if reading.value is not None]
    if not known:
        return UNKNOWN
    total = sum(reading.value for reading in known)
    return type(UNKNOWN)(
        value=total / len(known) if mean else total,
        quality=max((reading.quality for reading in known), key=_WORSE.__getitem__),
        age_ms=max(reading.age_ms or 0.0 for reading in known),
    )
