"""Results of a run: one row for each intent, in columns, and the figures that are drawn from them.

The denominator is always the unique intents that were offered. The clock starts at the first attempt. An
intent without an answer in full (refused, timed out, cancelled, failed) counts with a TTFT of infinity. The
same warm-up is dropped in every arm: rows by their offer time, totals by snapshots at its end.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CAUSES: Final = ("open", "ok", "timeout", "cancelled", "failed", "shed")
"""How an intent ended, by code; "open" only where the run was cut off."""

_FLOATS: Final = (
    "offered_ms",
    "ended_ms",
    "ttft_ms",
    "tpot_ms",
    "ttft_slo_ms",
    "tpot_slo_ms",
    "egress_price",
)
_INTS: Final = (
    "service_class",
    "tenant",
    "entry_region",
    "region",
    "instance",
    "cause",
    "attempts",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "wasted_tokens",
    "preemptions",
    "good",
)


class Names:
    """Strings as small numbers, in order of first use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """The number of a name."""
        return self._codes.setdefault(name, len(self._codes))

    def all(self) -> tuple[str, ...]:
        """Names by number."""
        return tuple(self._codes)


class Recorder:
    """Rows that are being written. Columns are plain arrays: one append each at the offer, set at the end."""

    def __init__(self) -> None:
        self.classes = Names()
        self.tenants = Names()
        self.floats: dict[str, array[float]] = {name: array("d") for name in _FLOATS}
        self.ints: dict[str, array[int]] = {name: array("q") for name in _INTS}

    def offered(
        self,
        at_ms: float,
        service_class: str,
        tenant: str,
        entry_region: int,
        input_tokens: int,
        ttft_slo_ms: float,
        tpot_slo_ms: float,
    ) -> int:
        """A new row; returns its number."""
        floats = self.floats
        row = len(floats["offered_ms"])
        for column, value in (
            ("offered_ms", at_ms),
            ("ended_ms", nan),
            ("ttft_ms", inf),
            ("tpot_ms", nan),
            ("ttft_slo_ms", ttft_slo_ms),
            ("tpot_slo_ms", tpot_slo_ms),
            ("egress_price", 0.0),
        ):
            floats[column].append(value)
        first = (self.classes.code(service_class), self.tenants.code(tenant), entry_region, -1, -1, 0, 0)
        for column_name, number in zip(_INTS, (*first, input_tokens, 0, 0, 0, 0, 0), strict=True):
            self.ints[column_name].append(number)
        return row

    def wasted(self, row: int, tokens: int) -> None:
        """Tokens that were generated for an attempt nobody got whole."""
        self.ints["wasted_tokens"][row] += tokens

    def price(self, row: int, price: float) -> None:
        """Egress that was paid for an attempt."""
        self.floats["egress_price"][row] += price

    def closed(self, row: int, cause: str, ended_ms: float, attempts: int) -> None:
        """The intent has ended."""
        self.ints["cause"][row] = CAUSES.index(cause)
        self.ints["attempts"][row] = attempts
        self.floats["ended_ms"][row] = ended_ms

    def answered(
        self,
        row: int,
        *,
        ttft_ms: float,
        tpot_ms: float,
        output_tokens: int,
        cached_tokens: int,
        preemptions: int,
        region: int,
        instance: int,
    ) -> None:
        """The client has all of it; ``ttft_ms`` from the first attempt, ``tpot_ms`` NaN for one token."""
        floats, ints = self.floats, self.ints
        floats["ttft_ms"][row] = ttft_ms
        floats["tpot_ms"][row] = tpot_ms
        ints["output_tokens"][row] = output_tokens
        ints["cached_tokens"][row] = cached_tokens
        ints["preemptions"][row] = preemptions
        ints["region"][row] = region
        ints["instance"][row] = instance
        slow = ttft_ms > floats["ttft_slo_ms"][row] or tpot_ms > floats["tpot_slo_ms"][row]
        ints["good"][row] = 0 if slow else 1  # a NaN TPOT is no violation


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all instances at one moment."""

    at_ms: float
    steps: int
    generation_tokens: int
    prefill_tokens: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    busy_ms: float


@dataclass(frozen=True)
class Results:
    """A finished run. ``columns`` have one entry for each intent offered, in order of offer."""

    columns: dict[str, NDArray[Any]]
    classes: tuple[str, ...]
    tenants: tuple[str, ...]
    regions: tuple[str, ...]
    warmup: Totals
    end: Totals
    """Totals when the last intent was offered (or the run's end): the window is from warm-up to here."""
    final: Totals
    events: int
    refusals: dict[str, int] = field(default_factory=dict)

    def digest(self) -> str:
        """A hash over every byte of every column: equal for equal runs."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.columns):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(self.columns[name]).tobytes())
        return digest.hexdigest()

    def measured(self) -> NDArray[np.bool_]:
        """Which rows count: offered after the warm-up."""
        kept: NDArray[np.bool_] = self.columns["offered_ms"] >= self.warmup.at_ms
        return kept

    def summary(self, service_class: str | None = None) -> dict[str, float]:
        """The figures of all intents that count, or of one class; KeyError for an unknown class.

        ``output_tokens_per_s`` is the total output, wasted tokens (of attempts that nobody got whole)
        included; ``good_share_tokens`` is of it. Other shares are of intents offered. TTFT percentiles are
        over all of them, infinity included, TPOT percentiles over answers of two tokens and more. Rates are
        per second of the window.
        """
        rows = self.measured()
        if service_class is not None:
            if service_class not in self.classes:
                raise KeyError(f"There is no class {service_class!r} in this run; it has {self.classes}.")
            rows = rows & (self.columns["service_class"] == self.classes.index(service_class))
        column = {name: values[rows] for name, values in self.columns.items()}
        offered = int(rows.sum())
        window_s = max(self.end.at_ms - self.warmup.at_ms, 1e-9) / 1_000.0
        good = column["good"] == 1
        figures: dict[str, float] = {
            "offered": offered,
            "window_s": window_s,
            "goodput_intents_per_s": float(good.sum()) / window_s,
            "goodput_tokens_per_s": float(column["output_tokens"][good].sum()) / window_s,
            "output_tokens_per_s": float((column["output_tokens"] + column["wasted_tokens"]).sum())
            / window_s,
            "wasted_tokens_per_s": float(column["wasted_tokens"].sum()) / window_s,
            "egress_price": float(column["egress_price"].sum()),
        }
        if offered:
            figures["good_share_intents"] = float(good.mean())
            total = float(column["output_tokens"].sum() + column["wasted_tokens"].sum())
            figures["good_share_tokens"] = (
                float(column["output_tokens"][good].sum()) / total if total else 0.0
            )
            figures["attempts_per_intent"] = float(column["attempts"].mean())
            for code, cause in enumerate(CAUSES):
                figures[f"share_{cause}"] = float((column["cause"] == code).mean())
            figures["ttft_mean_ms"] = float(column["ttft_ms"].mean())
        answered = column["cause"] == CAUSES.index("ok")
        prompt = float(column["input_tokens"][answered].sum())
        figures["hit_rate"] = float(column["cached_tokens"][answered].sum()) / prompt if prompt else nan
        for percent in (50, 90, 95, 99):
            figures[f"ttft_p{percent}_ms"] = percentile(column["ttft_ms"], percent)
            tpot_ms = column["tpot_ms"][~np.isnan(column["tpot_ms"])]
            figures[f"tpot_p{percent}_ms"] = percentile(tpot_ms, percent)
        return figures

    def engine_summary(self) -> dict[str, float]:
        """What the engines did in the window: steps, tokens, true hit rate."""
        window_s = max(self.end.at_ms - self.warmup.at_ms, 1e-9) / 1_000.0
        query = self.end.prefix_query_tokens - self.warmup.prefix_query_tokens
        hit = self.end.prefix_hit_tokens - self.warmup.prefix_hit_tokens
        return {
            "steps": self.end.steps - self.warmup.steps,
            "generated_tokens_per_s": (self.end.generation_tokens - self.warmup.generation_tokens) / window_s,
            "prefill_tokens_per_s": (self.end.prefill_tokens - self.warmup.prefill_tokens) / window_s,
            "hit_rate": hit / query if query else nan,
            "preemptions": self.end.preemptions - self.warmup.preemptions,
            "busy_ms": self.end.busy_ms - self.warmup.busy_ms,
        }


def percentile(values: NDArray[Any], percent: float) -> float:
    """The smallest value that ``percent`` of all are not above; NaN of none. Infinities are values."""
    if not len(values):
        return nan
    rank = max(0, int(np.ceil(percent / 100.0 * len(values))) - 1)
    return float(np.partition(values, rank)[rank])


def results_of(
    recorder: Recorder,
    regions: tuple[str, ...],
    warmup: Totals,
    end: Totals,
    final: Totals,
    events: int,
    refusals: dict[str, int],
) -> Results:
    """Columns as arrays."""
    columns: dict[str, NDArray[Any]] = {n: np.array(c, dtype=np.float64) for n, c in recorder.floats.items()}
    columns |= {n: np.array(c, dtype=np.int64) for n, c in recorder.ints.items()}
    return Results(
        columns, recorder.classes.all(), recorder.tenants.all(), regions, warmup, end, final, events, refusals
    )
