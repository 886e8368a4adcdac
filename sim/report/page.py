"""The page: what was run, load sweeps, distributions, time series, tables by load and by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim.experiments.spec import Experiment, Load
from sim.experiments.stats import Cells
from sim.report.svg import COLOURS, DASHES, Axis, Series, legend, line_chart
from sim.report.tables import (
    CLASSES,
    DIFFERENCES,
    MAIN,
    class_rows,
    difference_rows,
    gap_rows,
    html_table,
    is_oracle,
    main_rows,
)

BIN_S = 30.0
_STYLE = """
:root{color-scheme:light}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:#1d2733;background:#fff;
margin:0 auto;max-width:1120px;padding:32px 24px 80px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:44px 0 8px;padding-top:14px;
border-top:1px solid #e3e8ee}h3{font-size:15px;margin:26px 0 6px}p{max-width:78ch;margin:6px 0}
.lead{color:#51606f}.note{color:#51606f;font-size:13.5px}ul.note{padding-left:18px;margin:6px 0}
.wide{overflow-x:auto;margin:8px 0 4px}table{border-collapse:collapse;font-size:13px;
font-variant-numeric:tabular-nums}th,td{padding:4px 10px;text-align:right;white-space:nowrap}
thead th{font-weight:600;color:#51606f;border-bottom:1.5px solid #c4ced9;vertical-align:bottom;
white-space:normal;max-width:110px}th:first-child{text-align:left;font-weight:600}
tbody tr+tr td,tbody tr+tr th{border-top:1px solid #eef1f5}tbody tr:hover{background:#f6f9fc}
tr.oracle th,tr.oracle td{color:#51606f;font-style:italic}
td.better{font-weight:700;color:#0b5c2e;background:#edf7f0}
td.worse{font-weight:700;color:#9a2c12;background:#fdf1ed}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:14px 20px}
svg{width:100%;height:auto}.key svg{width:22px;height:8px;margin-right:6px}
svg .title{font:600 13px system-ui,sans-serif;fill:#1d2733}
svg .tick{font:11px system-ui,sans-serif;fill:#51606f}svg .mid{text-anchor:middle}
svg .end{text-anchor:end}svg .grid{stroke:#e8ecf1}svg .axis{stroke:#9aa7b4}
svg .knee{stroke:#9aa7b4;stroke-dasharray:3 3}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:8px 0}
.key{display:inline-flex;align-items:center}
nav a{color:#0072b2;margin-right:14px;text-decoration:none}
"""


def render(
    experiment: Experiment, recorded: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], requests: pa.Table
) -> str:
    """The whole page as HTML."""
    cells = Cells(rows)
    styles = _styles(cells.arms)
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>{escape(experiment.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(experiment.title)}</h1>",
        f'<p class="lead">{escape(experiment.about)}</p>',
        _method(experiment, recorded, cells),
        _sweep(experiment, cells, styles),
    ]
    for load in cells.loads:
        parts.append(_load(experiment, cells, load, requests, styles))
    versions = ", ".join(f"{name} {text}" for name, text in sorted(recorded["versions"].items()))
    parts.append(f'<p class="note">Made with {escape(versions)}; seeds {experiment.seeds}.</p>')
    return "".join(parts) + "</body></html>\n"


def _styles(arms: Sequence[str]) -> dict[str, tuple[str, str, float]]:
    """Colour, dash and width of every arm; bounds are grey and dotted."""
    styles, number = {}, 0
    for arm in arms:
        if is_oracle(arm):
            styles[arm] = ("#9aa7b4", "2 3", 1.6)
            continue
        dash = DASHES[min(number // len(COLOURS), len(DASHES) - 1)]
        styles[arm] = (COLOURS[number % len(COLOURS)], dash, 2.6 if arm.startswith("ours") else 1.6)
        number += 1
    return styles


def load_title(experiment: Experiment, cells: Cells, load: str) -> str:
    """The load with its measured rate, and its distance from the knee where that is known."""
    rate = rate_rps(cells, load)
    title = f"{load}: {rate:.2f} requests/s"
    if experiment.knee is not None:
        title += f", {rate / experiment.knee.rate_rps:.2f} of the knee"
    return title


def rate_rps(cells: Cells, load: str) -> float:
    """Intents offered a second, by the first arm's mean."""
    offered = cells.mean(cells.arms[0], load, "offered").mean
    return offered / cells.mean(cells.arms[0], load, "window_s").mean


def _method(experiment: Experiment, recorded: Mapping[str, Any], cells: Cells) -> str:
    fleet = experiment.fleet
    groups = ", ".join(f"{g.count} x {g.engine} in {g.region}" for g in fleet.replicas)
    signals = fleet.signals
    knee = ""
    if experiment.knee is not None:
        knee = (
            f" The knee is {experiment.knee.rate_rps:g} requests/s: there "
            f"{experiment.knee.share:.0%} of the intents are good under {experiment.knee.arm}."
        )
    notes = "".join(f"<li>{escape(note)}</li>" for note in recorded["notes"])
    text = (
        f"<h2>Method</h2><p>Fleet: {escape(groups)}; {fleet.routers_per_region} router(s) in each region; "
        f"engines sampled every {signals.sample_every_ms:g} ms, seen {signals.delay_ms:g} ms later. "
        f"{len(experiment.seeds)} seeds; the first {experiment.warmup_share:.0%} of every run is warm-up and "
        f"dropped.{knee}</p><p>Times count from an intent's first attempt. Shares are of all intents "
        "offered. An intent without an answer counts with a TTFT of infinity. ± is the half width of a 95% "
        "interval of Student's t over seeds; differences are paired by seed, and coloured where their "
        "interval leaves 0 out (green: better); in the first table of a load the best are marked, with all "
        "that can't be told from them. Times of the model lie below measured silicon: read ratios, not "
        f'milliseconds.</p><ul class="note">{notes}</ul>'
    )
    links = "".join(f'<a href="#{_anchor(load)}">{escape(load)}</a>' for load in cells.loads)
    return text + f"<nav>{links}</nav>"


def _anchor(load: str) -> str:
    return "load-" + "".join(c if c.isalnum() else "-" for c in load)


def _plain(load: Load) -> bool:
    """Whether a load differs from the others in its rate only."""
    odd = (load.steps, load.operations, load.clients, load.routers_per_region, load.signals)
    return not any(odd) and not (load.entry_shares or load.versions or load.users)


def _sweep(experiment: Experiment, cells: Cells, styles: Mapping[str, tuple[str, str, float]]) -> str:
    loads = [load.name for load in experiment.loads if _plain(load) and load.name in cells.loads]
    if len(loads) < 2:
        return ""
    loads.sort(key=lambda load: rate_rps(cells, load))
    rates = [rate_rps(cells, load) for load in loads]
    knee = experiment.knee.rate_rps if experiment.knee is not None else None
    inside = knee if knee is not None and rates[0] <= knee <= rates[-1] else None
    charts: list[str] = []
    for name, title, label, scale, log in (
        ("ttft_p50_ms", "TTFT, median", "s", 1e-3, True),
        ("ttft_p95_ms", "TTFT, 95th percentile", "s", 1e-3, True),
        ("good_share_intents", "Good intents", "% of those offered", 100.0, False),
        ("goodput_tokens_per_s", "Goodput", "good output tokens/s", 1.0, False),
        ("output_tokens_per_s", "Total output", "output tokens/s", 1.0, False),
        ("tpot_p95_ms", "TPOT, 95th percentile", "ms", 1.0, False),
    ):
        drawn: list[Series] = []
        for arm in cells.arms:
            means = [cells.mean(arm, load, name) for load in loads]
            if all(m.mean != m.mean for m in means):
                continue
            colour, dash, width = styles[arm]
            drawn.append(
                Series(
                    arm,
                    rates,
                    [m.mean * scale for m in means],
                    colour,
                    dash,
                    width,
                    [(m.mean - m.half) * scale for m in means],
                    [(m.mean + m.half) * scale for m in means],
                    markers=not is_oracle(arm),
                )
            )
        bottom = None if log else 0.0
        x_axis, y_axis = Axis("requests/s offered"), Axis(label, log, bottom)
        charts.append(line_chart(title, x_axis, y_axis, drawn, inside))
    keys = [Series(arm, (), (), *styles[arm]) for arm in cells.arms]
    return (
        '<h2>Load sweep</h2><p class="note">Whiskers are 95% intervals over seeds. A line ends where the '
        f'figure is infinite.</p>{legend(keys)}<div class="charts">{"".join(charts)}</div>'
    )


def _load(
    experiment: Experiment,
    cells: Cells,
    load: str,
    requests: pa.Table,
    styles: Mapping[str, tuple[str, str, float]],
) -> str:
    base = experiment.base
    parts = [
        f'<h2 id="{_anchor(load)}">{escape(load_title(experiment, cells, load))}</h2>',
        html_table([m.title for m in MAIN], main_rows(cells, load), "arm"),
        f"<h3>Difference to {escape(base)}, paired by seed</h3>",
        html_table([m.title for m in DIFFERENCES], difference_rows(cells, base, load), "arm"),
    ]
    heads, rows = gap_rows(cells, base, load)
    if heads:
        parts.append("<h3>Gap closed: (base − arm)/(base − oracle)</h3>")
        parts.append(html_table(heads, rows, "arm"))
    if len(cells.classes) > 1:
        for name in cells.classes:
            parts.append(f"<h3>Class {escape(name)}</h3>")
            parts.append(html_table([m.title for m in CLASSES], class_rows(cells, load, name), "arm"))
    parts.append(_charts(cells, load, requests, styles))
    return "".join(parts)


def _charts(cells: Cells, load: str, requests: pa.Table, styles: Mapping[str, tuple[str, str, float]]) -> str:
    table = requests.filter(pc.equal(requests["load"].cast(pa.string()), load)) if len(requests) else requests
    if not len(table):
        return ""
    seed = table["seed"][0].as_py()
    table = table.filter(pc.equal(table["seed"], seed))
    arms = table["arm"].cast(pa.string()).to_numpy(zero_copy_only=False)
    offered = table["offered_ms"].to_numpy()
    ttft, tpot = table["ttft_ms"].to_numpy(), table["tpot_ms"].to_numpy()
    tokens = table["output_tokens"].to_numpy() * (table["good"].to_numpy() == 1)
    begin = float(offered.min())
    width_ms = max(BIN_S * 1_000.0, (float(offered.max()) - begin) / 60.0)
    bins = ((offered - begin) // width_ms).astype(int)
    count = int(bins.max()) + 1
    minutes = [(begin + (i + 0.5) * width_ms) / 60_000.0 for i in range(count)]
    cdf, cdf_tpot, over_time, good = [], [], [], []
    for arm in (name for name in cells.arms if (arms == name).any()):
        mine = arms == arm
        style = styles[arm]
        cdf.append(_cdf(arm, ttft[mine] * 1e-3, style))
        spoken = tpot[mine]
        cdf_tpot.append(_cdf(arm, spoken[~np.isnan(spoken)], style))
        median = [_median(ttft[mine & (bins == i)]) * 1e-3 for i in range(count)]
        over_time.append(Series(arm, minutes, median, *style))
        sums = np.bincount(bins[mine], weights=tokens[mine], minlength=count) / (width_ms / 1_000.0)
        good.append(Series(arm, minutes, sums.tolist(), *style))
    share = Axis("% of intents", low=0.0, high=100.0)
    charts = [
        line_chart("TTFT, all intents", Axis("s", log=True, low=0.03), share, cdf),
        line_chart(
            "TPOT, answers", Axis("ms", log=True), Axis("% of answers", low=0.0, high=100.0), cdf_tpot
        ),
        line_chart("TTFT median over time", Axis("minute of the run"), Axis("s", log=True), over_time),
        line_chart(
            "Good tokens, by the offer of their intent",
            Axis("minute of the run"),
            Axis("tokens/s", low=0.0),
            good,
        ),
    ]
    return (
        f"<h3>Distributions and course, seed {seed}</h3>{legend(cdf)}"
        f'<div class="charts">{"".join(charts)}</div>'
    )


def _median(values: Any) -> float:
    return float(np.partition(values, len(values) // 2)[len(values) // 2]) if len(values) else float("nan")


def _cdf(arm: str, values: Any, style: tuple[str, str, float]) -> Series:
    """A distribution in 120 points; infinite values keep the line under 100%."""
    count = len(values)
    if not count:
        return Series(arm, (), (), *style)
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(0, count - 1, min(count, 120)).astype(int))
    kept = [(float(ordered[i]), 100.0 * (i + 1) / count) for i in ranks if np.isfinite(ordered[i])]
    return Series(arm, [x for x, _ in kept], [y for _, y in kept], *style)
