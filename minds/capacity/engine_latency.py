"""Latencies that engines measure themselves, over rolling windows, from their cumulative histograms.

Engines tell totals since their boot (schemas.telemetry.LatencyTotals), and only those that changed. A window
is what its newest and an older total differ in, so totals are kept at three grains: the last of every 2 s for
10 s, of every 10 s for 1 min, of every 30 s for 5 min, and at each grain the newest of the older ones, from
which an engine that was idle for long goes on counting. The newest total of a slot wins, so reading an event
twice, or in another order, changes nothing. Ranks are kept apart, and a newer boot replaces an older one.

Percentiles are interpolated within a bucket as Prometheus' ``histogram_quantile`` does it: off by less than
the bucket's width; what lies above the last bound reads as that bound. A window reaches back to the last
total before its beginning, so it is longer than its span by a slot at most, unless scrapes were missing.

What it costs in CPU time, four latencies of 20 buckets told each second: 40 kB in memory and 13 kB in the
changelog an instance, 0.8 kB a rollup; 6 us to fold and 13 us to add a scrape's totals, 27 us to read a
window.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import sub
from typing import Any
from zlib import crc32

import msgspec

from minds.windows import SPANS_MS
from schemas.fastpath import struct_of
from schemas.readings import Percentiles
from schemas.tables import EngineWindow

KEPT = ("ttft", "itl", "tpot", "queue")
"""The latencies that the table shows, as schemas.telemetry.LatencyName has them."""
GRAINS_MS = (2_000, 10_000, 30_000)
"""Length of a slot for each of ``SPANS_MS``."""
SLOTS = tuple(span // grain + 2 for span, grain in zip(SPANS_MS, GRAINS_MS, strict=True))
"""Slots kept: those of the span, the current one, and one for records that come late."""
SHARES = (0.50, 0.90, 0.95, 0.99)

_Window, _Percentiles = struct_of(EngineWindow), struct_of(Percentiles)


class Point(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """Totals at one time. ``counts`` is packed by ``pack``, ``total`` their sum."""

    at_ms: int
    bounds: int
    """Which of the rank's ``bounds``."""
    total: int
    counts: bytes


Grain = dict[int, Point]
"""Slot number (epoch ms // length) to its newest point."""


class RankTold(msgspec.Struct, array_like=True):
    """What one rank told within an interval: of each latency the last totals of each 2 s."""

    boot_started_at_ms: int
    boot: str
    bounds: dict[int, list[float]]
    """By their checksum: they hardly ever change, so they are kept once."""
    points: dict[str, Grain]


class RankLatencies(msgspec.Struct, array_like=True):
    """What is kept of one rank, in its newest boot: of each latency its points at each grain."""

    boot_started_at_ms: int
    boot: str
    bounds: dict[int, list[float]]
    grains: dict[str, tuple[Grain, Grain, Grain]]


Told = dict[int, RankTold]
"""A delta, by rank."""
Latencies = dict[int, RankLatencies]
"""A total, by rank."""


def told_of(event: Any) -> Told:
    """What one telemetry event (schemas.telemetry.Telemetry or its struct) tells; empty where nothing.

    Totals whose bounds and counts do not fit each other are left out.
    """
    bounds: dict[int, list[float]] = {}
    points: dict[str, Grain] = {}
    slot = event.at_ms // GRAINS_MS[0]
    for totals in event.latencies:
        if totals.name in KEPT and len(totals.counts) == len(totals.bounds_ms) + 1:
            number = _checksum(tuple(totals.bounds_ms))
            bounds[number] = totals.bounds_ms
            points[totals.name] = {slot: Point(event.at_ms, number, sum(totals.counts), pack(totals.counts))}
    return {event.rank: RankTold(event.boot_started_at_ms, event.boot, bounds, points)} if points else {}


def join_told(told: Told, other: Told) -> None:
    """Join two deltas, in place; idempotent, and the order never matters. ``other`` stays as it is."""
    for rank, theirs in other.items():
        mine = told.get(rank)
        if mine is None or _boot(theirs) > _boot(mine):
            points = {name: dict(grain) for name, grain in theirs.points.items()}
            told[rank] = RankTold(theirs.boot_started_at_ms, theirs.boot, dict(theirs.bounds), points)
        elif _boot(theirs) == _boot(mine):
            mine.bounds |= theirs.bounds
            for name, grain in theirs.points.items():
                _take(mine.points.setdefault(name, {}), grain.values(), GRAINS_MS[0])


def add_told(latencies: Latencies, told: Told) -> None:
    """Add a delta to a total, in place; idempotent, and the order never matters. ``told`` stays as it is."""
    for rank, theirs in told.items():
        mine = latencies.get(rank)
        if mine is None or _boot(theirs) > _boot(mine):
            mine = latencies[rank] = RankLatencies(theirs.boot_started_at_ms, theirs.boot, {}, {})
        elif _boot(theirs) < _boot(mine):
            continue
        mine.bounds |= theirs.bounds
        for name, points in theirs.points.items():
            grains = mine.grains.get(name)
            if grains is None:
                grains = mine.grains[name] = ({}, {}, {})
            for grain, length_ms in zip(grains, GRAINS_MS, strict=True):
                _take(grain, points.values(), length_ms)


def _take(grain: Grain, points: Iterable[Point], length_ms: int) -> None:
    for point in points:
        slot = point.at_ms // length_ms
        seen = grain.get(slot)
        if seen is None or point > seen:
            grain[slot] = point


def _boot(rank: RankTold | RankLatencies) -> tuple[int, str]:
    return rank.boot_started_at_ms, rank.boot


def forget_old(latencies: Latencies, mark_ms: int) -> None:
    """Drop what no window up to the record time ``mark_ms`` or later needs, and bounds that none uses, where
    there is more than a grain should hold.

    Of the slots that are too old the newest stays: from there an engine that was idle goes on counting.
    """
    for rank in latencies.values():
        dropped = False
        for grains in rank.grains.values():
            for grain, length_ms, keep in zip(grains, GRAINS_MS, SLOTS, strict=True):
                if len(grain) <= keep + 1:  # looking costs more than what could be gained
                    continue
                first = mark_ms // length_ms - keep + 1
                old = [slot for slot in grain if slot < first]
                if len(old) > 1:
                    old.remove(max(old))
                    dropped = True
                    for slot in old:
                        del grain[slot]
        if dropped and len(rank.bounds) > 1:
            used = {p.bounds for grains in rank.grains.values() for grain in grains for p in grain.values()}
            rank.bounds = {number: bounds for number, bounds in rank.bounds.items() if number in used}


# --------------------------------------------------------------------------------------------- windows


def engine_windows(
    latencies: Latencies, opened: Sequence[Told], boot: tuple[int, str], now_ms: int
) -> list[Any]:
    """The windows of 10 s, 1 min and 5 min up to now (structs of schemas.tables.EngineWindow), or none where
    the engine told no latencies in this boot.

    ``latencies`` is the closed total, ``opened`` the open partials; ``boot`` is (started at, name).
    """
    return [
        _Window(span_ms=float(span_ms), **figures)
        for place, span_ms in enumerate(SPANS_MS)
        if (figures := engine_window(latencies, opened, boot, place, now_ms)) is not None
    ]


def engine_window(
    latencies: Latencies, opened: Sequence[Told], boot: tuple[int, str], place: int, now_ms: int
) -> dict[str, Any] | None:
    """The percentiles (or None) of the window of ``SPANS_MS[place]`` up to now, by field of EngineWindow.

    None where the engine told no latencies in this boot. Of the time between tokens and a request's mean of
    it only the mean is read where the engine tells both.
    """
    ranks = _ranks(latencies, opened, boot)
    if not ranks:
        return None
    names = {name for rank in ranks for name in rank.names}
    if "tpot" in names:
        names.discard("itl")
    since_ms = now_ms - SPANS_MS[place]
    return {f"{name}_ms": _over_ranks(ranks, name, place, since_ms) for name in KEPT if name in names}


class _Rank:
    """One rank's closed total and open partials, looked at together."""

    __slots__ = ("closed", "opened")

    def __init__(self) -> None:
        self.closed: RankLatencies | None = None
        self.opened: list[RankTold] = []

    @property
    def names(self) -> set[str]:
        names = {name for told in self.opened for name in told.points}
        return names if self.closed is None else names.union(self.closed.grains)

    def grain(self, name: str, place: int) -> Grain:
        grains = self.closed.grains.get(name) if self.closed is not None else None
        grain = grains[place] if grains is not None else {}
        opened = [points for told in self.opened if (points := told.points.get(name))]
        if opened:
            grain = grain.copy()
            for points in opened:
                _take(grain, points.values(), GRAINS_MS[place])
        return grain

    def bounds(self, number: int) -> list[float]:
        if self.closed is not None and number in self.closed.bounds:
            return self.closed.bounds[number]
        return next(told.bounds[number] for told in self.opened if number in told.bounds)


def _ranks(latencies: Latencies, opened: Sequence[Told], boot: tuple[int, str]) -> list[_Rank]:
    ranks: dict[int, _Rank] = {}
    for number, closed in latencies.items():
        if _boot(closed) == boot:
            ranks[number] = _Rank()
            ranks[number].closed = closed
    for part in opened:
        for number, told in part.items():
            if _boot(told) == boot:
                ranks.setdefault(number, _Rank()).opened.append(told)
    return list(ranks.values())


def _over_ranks(ranks: Sequence[_Rank], name: str, place: int, since_ms: int) -> Any:
    """Over all ranks that tell this latency; unknown where one's is, or their bounds differ."""
    shape: list[float] | None = None
    total: Sequence[int] = ()
    for rank in ranks:
        grain = rank.grain(name, place)
        if not grain:
            continue
        newest = grain[max(grain)]
        if newest.at_ms <= since_ms:
            continue
        counts = _grown(grain, since_ms)
        if counts is None:
            return None
        bounds = rank.bounds(newest.bounds)
        if shape is None:
            shape, total = bounds, counts
        elif shape == bounds:
            total = [a + b for a, b in zip(total, counts, strict=True)]
        else:
            return None
    return None if shape is None else percentiles_of(shape, total)


def _grown(grain: Grain, since_ms: int) -> Sequence[int] | None:
    """What was counted in each bucket since then.

    None where that can't be told: there is no total from before, or the bounds have changed meanwhile. A
    count that fell within a boot is a reset: what was counted from then on counts.
    """
    walk: list[Point] = []
    later: Point | None = None
    fell = False
    for slot in sorted(grain, reverse=True):
        point = grain[slot]
        walk.append(point)
        if later is not None:
            if point.bounds != later.bounds:
                return None
            fell = fell or point.total > later.total
        if point.at_ms <= since_ms:
            break
        later = point
    else:
        return None
    held = unpack(walk[-1].counts)
    if not fell:
        grown = list(map(sub, unpack(walk[0].counts), held))
        if min(grown) >= 0:
            return grown
    total = [0] * len(held)
    for point in walk[-2::-1]:
        counts = unpack(point.counts)
        steps: Sequence[int] = list(map(sub, counts, held))
        total = [a + b for a, b in zip(total, counts if min(steps) < 0 else steps, strict=True)]
        held = counts
    return total


def percentiles_of(bounds_ms: Sequence[float], counts: Sequence[int]) -> Any:
    """Percentiles of a histogram in ms (a struct of schemas.readings.Percentiles), None where it is empty.

    ``counts[i]`` lie in ``(bounds_ms[i-1], bounds_ms[i]]``, evenly spread; the first bucket begins at 0.
    """
    total = sum(counts)
    if not total or not bounds_ms:
        return None
    found: list[float] = []
    place, below, last = 0, 0, len(bounds_ms)
    for share in SHARES:
        wanted = share * total
        while place < last and below + counts[place] < wanted:
            below += counts[place]
            place += 1
        if place == last:
            found.append(bounds_ms[-1])
        else:
            low, high = bounds_ms[place - 1] if place else 0.0, bounds_ms[place]
            found.append(min(high, low + (high - low) * (wanted - below) / counts[place]))
    return _Percentiles(p50=found[0], p90=found[1], p95=found[2], p99=found[3])


# -------------------------------------------------------------------------------------------- packing


def pack(counts: Sequence[int]) -> bytes:
    """Counts as a Point keeps them: a letter for their size, then 4 or 8 bytes each, least first."""
    size = b"I" if max(counts) < 2**32 else b"Q"
    return size + _format(len(counts), size == b"Q").pack(*counts)


def unpack(counts: bytes) -> tuple[int, ...]:
    """The counts that ``pack`` has packed."""
    wide = counts[0] == ord("Q")
    return _format((len(counts) - 1) // (8 if wide else 4), wide).unpack_from(counts, 1)


@lru_cache(maxsize=500)
def _format(buckets: int, wide: bool) -> struct.Struct:
    return struct.Struct(f"<{buckets}{'Q' if wide else 'I'}")


@lru_cache(maxsize=10_000)
def _checksum(bounds_ms: tuple[float, ...]) -> int:
    return crc32(struct.pack(f"<{len(bounds_ms)}d", *bounds_ms))
