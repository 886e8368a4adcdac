"""Figures from ledger records: compliance, goodput, latency percentiles, shares of the regions. Pure.

The denominators are unique intents *offered*, never those admitted. Goodput: output tokens of intents that
finished within their SLO, per second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sim.loadgen.ledger import IntentRecord
from sim.loadgen.retry import Cause


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles in ms over `count` values, of which `infinite` never came.

    A percentile is None where it falls on an infinite value or where there is no value at all.
    """

    count: int
    infinite: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class (or all of them together).

    `compliance_intents`: intents within SLO / intents offered. `compliance_tokens`: tokens of intents within
    SLO / tokens that all offered intents asked for. `good_output_share`: tokens of intents within SLO /
    tokens delivered at all (thrown-away ones included). A ratio is None where its denominator is 0.
    """

    offered: int
    ok: int
    within_slo: int
    causes: dict[str, int]
    compliance_intents: float | None
    compliance_tokens: float | None
    good_output_share: float | None
    goodput_tokens_per_s: float | None
    output_tokens_per_s: float | None
    wasted_tokens: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles


@dataclass(frozen=True, slots=True)
class RegionFigures:
    """What one serving region did: intents answered whole there, their share of all such, their tokens."""

    ok: int
    share: float
    tokens: int


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """All figures of a run. `lag_ms`: how late the generator started intents, which is its own fault."""

    duration_s: float | None
    total: ClassFigures
    classes: dict[str, ClassFigures]
    regions: dict[str, RegionFigures]
    retries: int
    lag_ms: Percentiles

    @property
    def offered(self) -> int:
        """Unique intents offered."""
        return self.total.offered

    @property
    def ok(self) -> int:
        """Intents answered whole, within SLO or not."""
        return self.total.ok

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the totals at the top level; infinite and unknown are None."""
        figures = asdict(self)
        return {**figures.pop("total"), **figures}


def summarise(records: Sequence[IntentRecord], *, duration_s: float | None = None) -> LoadSummary:
    """The figures of a run. `duration_s` is what rates are taken over; default: first start to last finish.

    ValueError where an intent id occurs twice: then the books are wrong and no figure would mean anything.
    """
    twice = [intent for intent, count in Counter(record.intent_id for record in records).items() if count > 1]
    if twice:
        raise ValueError(f"{len(twice)} intents are in the ledger more than once, first {twice[0]!r}.")
    if duration_s is None:
        duration_s = _span_s(records)
    names = dict.fromkeys(record.service_class for record in records)
    return LoadSummary(
        duration_s=duration_s,
        total=_figures(records, duration_s),
        classes={
            name: _figures([record for record in records if record.service_class == name], duration_s)
            for name in sorted(names)
        },
        regions=_regions(records),
        retries=sum(max(0, len(record.attempts) - 1) for record in records),
        lag_ms=percentiles([record.lag_ms for record in records]),
    )


def ttft_for_percentiles_ms(record: IntentRecord) -> float:
    """The intent's TTFT; infinite unless answered whole, or left by its own client after the first token."""
    if record.cause in (Cause.OK, Cause.CANCELLED) and record.ttft_ms is not None:
        return record.ttft_ms
    return math.inf


def percentiles(values: Iterable[float]) -> Percentiles:
    """Nearest-rank percentiles: always a value that occurred, and defined with infinite ones among them."""
    ordered = sorted(values)
    count = len(ordered)

    def at(percent: int) -> float | None:
        if not count:
            return None
        value = ordered[
            max(0, -(-percent * count // 100) - 1)
        ]  # ceil in integers: 0.95 * 20 is no 19 in floats
        return value if math.isfinite(value) else None

    return Percentiles(count, sum(not math.isfinite(value) for value in ordered), at(50), at(95), at(99))


def _figures(records: Sequence[IntentRecord], duration_s: float | None) -> ClassFigures:
    good = [record for record in records if record.within_slo]
    good_tokens = sum(record.tokens for record in good)
    output_tokens = sum(record.tokens + record.wasted_tokens for record in records)
    ok = [record for record in records if record.cause is Cause.OK]
    return ClassFigures(
        offered=len(records),
        ok=len(ok),
        within_slo=len(good),
        causes=_causes(records),
        compliance_intents=_ratio(len(good), len(records)),
        compliance_tokens=_ratio(good_tokens, sum(record.output_tokens for record in records)),
        good_output_share=_ratio(good_tokens, output_tokens),
        goodput_tokens_per_s=_ratio(good_tokens, duration_s),
        output_tokens_per_s=_ratio(output_tokens, duration_s),
        wasted_tokens=sum(record.wasted_tokens for record in records),
        ttft_ms=percentiles([ttft_for_percentiles_ms(record) for record in records]),
        tpot_ms=percentiles([record.tpot_ms for record in ok if record.tpot_ms is not None]),
    )


def _causes(records: Sequence[IntentRecord]) -> dict[str, int]:
    counts = Counter(record.cause or Cause.FAILED for record in records)
    return {str(cause): counts[cause] for cause in Cause}


def _regions(records: Sequence[IntentRecord]) -> dict[str, RegionFigures]:
    """Only intents whose router named the region; the others are in no region's figures."""
    served = [record for record in records if record.cause is Cause.OK and record.region is not None]
    regions: dict[str, list[IntentRecord]] = {}
    for record in served:
        regions.setdefault(str(record.region), []).append(record)
    return {
        name: RegionFigures(
            ok=len(members), share=len(members) / len(served), tokens=sum(record.tokens for record in members)
        )
        for name, members in sorted(regions.items())
    }


def _span_s(records: Sequence[IntentRecord]) -> float | None:
    ends = [record.finish_epoch_ms for record in records if record.finish_epoch_ms is not None]
    if not ends:
        return None
    return (max(ends) - min(record.start_epoch_ms for record in records)) / 1_000.0


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
