"""The figures of a run as tables: for the page, and the same for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import inf, isfinite, isnan

from sim.experiments.stats import Cells, Estimate
from sim.oracles.hindsight import NAME as STATIC_ORACLE


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a row: how it is headed, scaled and rounded, and which way is better."""

    name: str
    title: str
    scale: float = 1.0
    digits: int = 2
    higher_is_better: bool = False


MAIN = (
    Metric("ttft_p50_ms", "TTFT P50, s", 1e-3, 2),
    Metric("ttft_p95_ms", "P95, s", 1e-3, 2),
    Metric("ttft_p99_ms", "P99, s", 1e-3, 1),
    Metric("tpot_p50_ms", "TPOT P50, ms", 1, 1),
    Metric("tpot_p95_ms", "P95, ms", 1, 1),
    Metric("goodput_tokens_per_s", "goodput, tok/s", 1, 0, True),
    Metric("output_tokens_per_s", "total output, tok/s", 1, 0, True),
    Metric("good_share_tokens", "good tokens, %", 100, 1, True),
    Metric("good_share_intents", "good intents, %", 100, 1, True),
    Metric("hit_rate", "cache hits, %", 100, 1, True),
)
DIFFERENCES = (
    Metric("ttft_p50_ms", "TTFT P50, s", 1e-3, 2),
    Metric("ttft_p95_ms", "TTFT P95, s", 1e-3, 2),
    Metric("tpot_p50_ms", "TPOT P50, ms", 1, 1),
    Metric("goodput_tokens_per_s", "goodput, tok/s", 1, 0, True),
    Metric("goodput_intents_per_s", "goodput, intents/s", 1, 2, True),
    Metric("output_tokens_per_s", "total output, tok/s", 1, 0, True),
)
CLASSES = (
    Metric("ttft_p50_ms", "TTFT P50, s", 1e-3, 2),
    Metric("ttft_p95_ms", "P95, s", 1e-3, 2),
    Metric("tpot_p95_ms", "TPOT P95, ms", 1, 1),
    Metric("good_share_intents", "good intents, %", 100, 1, True),
    Metric("good_share_tokens", "good tokens, %", 100, 1, True),
    Metric("goodput_tokens_per_s", "goodput, tok/s", 1, 0, True),
    Metric("share_shed", "shed, %", 100, 1),
    Metric("share_timeout", "timed out, %", 100, 1),
    Metric("attempts_per_intent", "attempts", 1, 2),
)
Row = tuple[str, list[str], list[str]]
"""Name, cells, and how each of them stands out: "better", "worse" or not at all ("")."""

TERMINAL = (
    Metric("ttft_p50_ms", "TTFT P50", 1e-3, 2),
    Metric("ttft_p95_ms", "P95 s", 1e-3, 2),
    Metric("tpot_p50_ms", "TPOT ms", 1, 1),
    Metric("goodput_tokens_per_s", "good tok/s", 1, 0, True),
    Metric("output_tokens_per_s", "all tok/s", 1, 0, True),
    Metric("good_share_intents", "good %", 100, 1, True),
    Metric("hit_rate", "hits %", 100, 1, True),
)
"""What fits into 80 columns."""


def shown(estimate: Estimate, metric: Metric, signed: bool = False, interval: bool = True) -> str:
    """A mean with its interval; an infinite percentile as a sign, nothing where there is nothing."""
    mean = estimate.mean * metric.scale
    if isnan(mean):
        return "–"
    if not isfinite(mean):
        return ("−" if mean == -inf else "") + "∞"
    text = f"{mean:+,.{metric.digits}f}" if signed else f"{mean:,.{metric.digits}f}"
    if interval and isfinite(estimate.half):
        text += f" ±{estimate.half * metric.scale:,.{metric.digits}f}"
    return text.replace("-", "−")


def main_rows(cells: Cells, load: str, metrics: Sequence[Metric] = MAIN, interval: bool = True) -> list[Row]:
    """All arms under one load. In each column the best one stands out, and those that differ from it by less
    than the interval of their paired difference (oracles don't take part)."""
    table = {arm: [cells.mean(arm, load, m.name) for m in metrics] for arm in cells.arms}
    marked = [_best(cells, load, metric) for metric in metrics]
    return [
        (
            arm,
            [shown(value, metric, interval=interval) for value, metric in zip(row, metrics, strict=True)],
            ["better" if arm in best else "" for best in marked],
        )
        for arm, row in table.items()
        if any(not isnan(value.mean) for value in row)
    ]


def _best(cells: Cells, load: str, metric: Metric) -> set[str]:
    """The best arm and its equals; none where they are more than half of all, since that tells nothing."""
    means = {
        arm: cells.mean(arm, load, metric.name).mean
        for arm in cells.arms
        if not is_oracle(arm) and isfinite(cells.mean(arm, load, metric.name).mean)
    }
    if not means:
        return set()
    first = (max if metric.higher_is_better else min)(means, key=lambda arm: means[arm])
    equals = {first}
    for arm in means:
        difference = cells.paired(arm, first, load, metric.name)
        if means[arm] == means[first] or (isfinite(difference.half) and not difference.differs):
            equals.add(arm)
    return equals if 2 * len(equals) <= len(means) + 1 else set()


def difference_rows(cells: Cells, base: str, load: str) -> list[Row]:
    """Paired differences to the base; those whose interval leaves 0 out stand out."""
    rows: list[Row] = []
    for arm in cells.arms:
        if arm == base or is_oracle(arm):
            continue
        found = [cells.paired(arm, base, load, metric.name) for metric in DIFFERENCES]
        texts = []
        for estimate, metric in zip(found, DIFFERENCES, strict=True):
            relative = cells.paired(arm, base, load, metric.name, relative=True)
            percent = f" ({relative.mean * 100:+.0f}%)".replace("-", "−") if isfinite(relative.mean) else ""
            texts.append(shown(estimate, metric, signed=True) + percent)
        verdicts = []
        for estimate, metric in zip(found, DIFFERENCES, strict=True):
            better = (estimate.mean > 0) == metric.higher_is_better
            verdicts.append(("better" if better else "worse") if estimate.differs else "")
        rows.append((arm, texts, verdicts))
    return rows


def gap_rows(cells: Cells, base: str, load: str) -> tuple[list[str], list[Row]]:
    """Headings and rows of the gap closed to every oracle that has the figure."""
    pairs = [
        (oracle, metric)
        for oracle in cells.arms
        if is_oracle(oracle)
        for metric in (
            Metric("ttft_mean_ms", "TTFT mean"),
            Metric("ttft_p50_ms", "TTFT P50"),
            Metric("ttft_p95_ms", "TTFT P95"),
            Metric("goodput_tokens_per_s", "goodput tok/s"),
            Metric("goodput_intents_per_s", "goodput intents/s"),
        )
        if cells.values(oracle, load, metric.name)
        # A static cap is best in goodput; its latencies are no bound.
        and (oracle != STATIC_ORACLE or metric.name.startswith("goodput"))
    ]
    percent = Metric("", "", 100, 0)
    heads = [f"{metric.title} to {oracle.removeprefix('oracle: ')}, %" for oracle, metric in pairs]
    rows: list[Row] = []
    for arm in cells.arms:
        if is_oracle(arm) or arm == base:
            continue
        found = [cells.gap_closed(arm, base, oracle, load, metric.name) for oracle, metric in pairs]
        rows.append((arm, [shown(estimate, percent) for estimate in found], [""] * len(found)))
    return heads, rows


def class_rows(cells: Cells, load: str, service_class: str) -> list[Row]:
    """All arms for one class."""
    return [
        (
            arm,
            [shown(cells.mean(arm, load, m.name, service_class), m) for m in CLASSES],
            [""] * len(CLASSES),
        )
        for arm in cells.arms
        if not is_oracle(arm)
    ]


def is_oracle(arm: str) -> bool:
    """Whether an arm is a bound and no policy."""
    return arm.startswith("oracle: ")


def html_table(heads: Sequence[str], rows: Sequence[Row], first: str = "") -> str:
    """The table as HTML."""
    head = "".join(f"<th>{escape(text)}</th>" for text in (first, *heads))
    body = []
    for name, cells, verdicts in rows:
        kind = ' class="oracle"' if is_oracle(name) else ""
        inner = "".join(
            f'<td class="{verdict}">{escape(text)}</td>' if verdict else f"<td>{escape(text)}</td>"
            for text, verdict in zip(cells, verdicts, strict=True)
        )
        body.append(f"<tr{kind}><th>{escape(name)}</th>{inner}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )
