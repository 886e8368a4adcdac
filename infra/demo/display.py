"""What the demo shows: progress and live tables, then figures and the books. Degrades to plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sim.loadgen.ledger import LiveView
from sim.loadgen.summary import LoadSummary, Percentiles

SIDE_BY_SIDE_COLUMNS = 110
"""Narrower terminals get the tables below one another."""


def table(title: str, *columns: str, text_columns: int = 1) -> Table:
    """A table of the demo: text to the left, figures to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < text_columns else "right")
    return made


def milliseconds(value: float | None) -> str:
    """A duration for people; a dash for unknown or infinite."""
    if value is None:
        return "–"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"


def percent(value: float | None) -> str:
    """A ratio as a percentage; a dash for unknown."""
    return "–" if value is None else f"{100 * value:.1f}%"


class LiveDisplay:
    """The running demo: feed it the generator's live view and, now and then, the region table."""

    def __init__(self, planned: int) -> None:
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} intents"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            expand=True,
        )
        self._task = self.progress.add_task("replaying", total=max(1, planned))
        self._view: LiveView | None = None
        self._regions: list[dict[str, Any]] = []

    def update(self, view: LiveView) -> None:
        """Take the generator's figures."""
        self._view = view
        self.progress.update(self._task, completed=sum(view.finished.values()))

    def regions(self, rows: list[dict[str, Any]]) -> None:
        """Take the rows of the region table as a router sees them."""
        self._regions = rows

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self.progress]
        if self._view is not None:
            parts.append(self._counts(self._view))
            side_by_side = Table.grid(padding=(0, 4))
            side_by_side.add_row(self._classes(self._view), self._region_table() if self._regions else "")
            parts.append(side_by_side)
        return Group(*parts)

    def _counts(self, view: LiveView) -> Text:
        causes = "  ".join(f"{count:,} {cause}" for cause, count in sorted(view.finished.items()) if count)
        retries = f"  {view.retries} retries" if view.retries else ""
        return Text(f"{view.in_flight} in flight  {causes}{retries}", style="dim", no_wrap=True)

    def _classes(self, view: LiveView) -> Table:
        made = table("", "class", "offered", "within SLO")
        for name in sorted(view.offered_by_class):
            made.add_row(
                name, f"{view.offered_by_class[name]:,}", f"{view.within_slo_by_class.get(name, 0):,}"
            )
        return made

    def _region_table(self) -> Table:
        made = table("", "region", "ready", "running", "waiting", "KV", "tokens/s")
        for row in sorted(self._regions, key=lambda row: str(row.get("region"))):
            made.add_row(
                str(row.get("region")),
                f"{row.get('ready_endpoints', 0)}/{row.get('known_endpoints', 0)}",
                _reading(row, "requests_running", "{:.0f}"),
                _reading(row, "requests_waiting", "{:.0f}"),
                _reading(row, "kv_usage_ratio", "{:.1%}"),
                _reading(row, "decode_tokens_per_s", "{:,.0f}"),
            )
        return made


def _reading(row: Mapping[str, Any], name: str, form: str) -> str:
    reading = row.get(name) or {}
    value = reading.get("value")
    return "unknown" if value is None else form.format(value)


def show_figures(console: Console, summary: LoadSummary) -> None:
    """Print what the load generator measured as a client."""
    made = table(
        "Service level from each intent's first attempt; goodput in output tokens",
        *("class", "offered", "ok", "within SLO", "compliance", "in tokens", "goodput/s"),
    )
    for name, figures in [*summary.classes.items(), ("all", summary.total)]:
        made.add_row(
            f"[bold]{name}[/]" if name == "all" else name,
            f"{figures.offered:,}",
            f"{figures.ok:,}",
            f"{figures.within_slo:,}",
            percent(figures.compliance_intents),
            percent(figures.compliance_tokens),
            f"{figures.goodput_tokens_per_s:,.0f}" if figures.goodput_tokens_per_s is not None else "–",
        )
    console.print(made)
    latency = table("Latency", "", "p50", "p95", "p99")
    for name, p in (("TTFT", summary.total.ttft_ms), ("TPOT", summary.total.tpot_ms)):
        latency.add_row(name, *_percentile_cells(p))
    regions = table("Served by", "region", "intents", "share", "output tokens")
    for name, region in sorted(summary.regions.items()):
        regions.add_row(name, f"{region.ok:,}", percent(region.share), f"{region.tokens:,}")
    causes = table("How intents ended", "cause", "intents")
    for cause, count in sorted(summary.total.causes.items(), key=lambda item: -item[1]):
        if count:
            causes.add_row(cause, f"{count:,}")
    if console.width >= SIDE_BY_SIDE_COLUMNS:
        side_by_side = Table.grid(padding=(0, 4))
        side_by_side.add_row(latency, regions, causes)
        console.print(side_by_side)
    else:
        console.print(latency, regions, causes)


def _percentile_cells(values: Percentiles) -> list[str]:
    return [milliseconds(values.p50), milliseconds(values.p95), milliseconds(values.p99)]
