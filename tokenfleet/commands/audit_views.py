"""How audits look on a terminal. Unknown figures are shown as a dash, never as 0."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sinks.audits import Goodput, IntentStory, ResidencyAudit

_COLOURS = {"ok": "green", "shed": "yellow", "lost": "magenta"}


def show_story(console: Console, story: IntentStory) -> None:
    """One intent: a summary, a table of attempts, what each logged decision saw, and what is odd."""
    console.print(
        f"[bold]Intent {escape(story.intent_id)}[/] of tenant {escape(story.tenant)}", highlight=False
    )
    if story.summary is None:
        console.print("Not closed: no outcome is stored yet.")
    else:
        _summary(console, story.summary)
    console.print(_attempts(story))
    for decisions, _ in story.attempts:
        if decisions and decisions[0].get("input"):
            _seen(console, decisions[0])
    _oddities(console, story)


def _summary(console: Console, row: dict[str, Any]) -> None:
    rule = f" ({escape(row['rule'])})" if row["rule"] else ""
    console.print(
        f"{_cause(row['cause'])}{rule}, {'within' if row['within_slo'] else 'not within'} its level "
        f"(TTFT {_number(row['ttft_ms'])} of {_number(row['ttft_slo_ms'])} ms, "
        f"TPOT {_number(row['tpot_ms'], 1)} of {_number(row['tpot_slo_ms'], 1)} ms); "
        f"class {escape(row['service_class'])}, from {escape(row['entry_region'])} to "
        f"{escape(row['region'] or '-')}, {_number(row['output_tokens'])} tokens, "
        f"{_number(row['wasted_tokens'])} wasted, begun {_time(row['started_at_ms'])}",
        highlight=False,
        soft_wrap=True,
    )


def _attempts(story: IntentStory) -> Table:
    names = ("#", "decision", "at (UTC)", "router", "verdict", "region", "instance", "outcome")
    figures = ("TTFT ms", "predicted", "TPOT ms", "tokens")
    table = Table(*names, *figures, title="Attempts", title_justify="left")
    for decisions, outcomes in story.attempts:
        decision = decisions[0] if decisions else {}
        first = decision or outcomes[0]
        verdict = decision.get("verdict", "not logged")
        rule = f": {decision['rule']}" if decision.get("rule") else ""
        for outcome in outcomes or [{}]:
            ended = _cause(outcome["cause"]) if outcome else "open"
            table.add_row(
                str(first["attempt"]),
                escape(first["decision_id"]),
                _time(first["at_ms"]),
                escape(first["router"]),
                escape(verdict + rule),
                escape(first["region"] or "-"),
                escape(first["instance"] or "-"),
                ended + (" [dim](inferred)[/]" if outcome.get("inferred") else ""),
                _number(outcome.get("ttft_ms")),
                _number(first.get("predicted_ttft_ms")),
                _number(outcome.get("tpot_ms"), 1),
                _number(outcome.get("output_tokens")),
            )
    return table


def _seen(console: Console, decision: dict[str, Any]) -> None:
    given = decision["input"]
    table = Table(
        "instance",
        "region",
        "running",
        "waiting",
        "own in flight",
        "reading age ms",
        "score",
        "excluded by",
        title=f"What decision {escape(decision['decision_id'])} saw",
        title_justify="left",
    )
    for item in given.get("candidates", []):
        chosen = item["instance"] == decision["instance"]
        table.add_row(
            f"[bold]{escape(item['instance'])}[/]" if chosen else escape(item["instance"]),
            escape(item["region"]),
            _number(item.get("requests_running")),
            _number(item.get("requests_waiting")),
            str(item.get("own_in_flight", 0)),
            _number(item.get("reading_age_ms")),
            _number(item.get("score"), 2),
            escape(item.get("excluded_by") or ""),
        )
    console.print(table)
    rows = ", ".join(f"{row['row']} {row['epoch']}/{row['version']}" for row in given.get("rows", []))
    console.print(f"Rows (epoch/version): {escape(rows) or '-'}", highlight=False, soft_wrap=True)


def _oddities(console: Console, story: IntentStory) -> None:
    for decisions, outcomes in story.attempts:
        real = [row for row in outcomes if not row["inferred"]]
        if len(decisions) > 1 or len(real) > 1:
            key = (decisions or outcomes)[0]["decision_id"]
            console.print(
                f"[yellow]Logged more than once:[/] {escape(key)} "
                f"({len(decisions)} decisions, {len(real)} outcomes)",
                highlight=False,
            )
    if story.dead_letters:
        console.print(
            f"[yellow]{len(story.dead_letters)} dead letters[/] of the request topics in this time "
            "(whose they are is unknown):",
            highlight=False,
        )
        for row in story.dead_letters:
            console.print(
                f"  {row['origin_topic']}/{row['origin_partition']}/{row['origin_offset']}: "
                f"{escape(row['reason'])}",
                highlight=False,
                soft_wrap=True,
            )


def show_goodput(console: Console, report: Goodput) -> None:
    """A row a group and a total."""
    if report.total is None:
        console.print(f"No intent that began in the last {report.since_s} s has been closed.")
        return
    heads = ("offered", "ok", "within level", "compliance", "timeout", "cancelled", "failed", "shed", "lost")
    tokens = (
        "tokens",
        "good tokens",
        "wasted",
        "goodput tok/s",
        "TTFT ms p50/90/99",
        "TPOT ms p50/90/99",
    )
    table = Table(
        title=f"Goodput of the last {report.since_s} s by {report.by}",
        title_justify="left",
        show_footer=False,
    )
    table.add_column(report.by)
    for head in (*heads, *tokens):
        table.add_column(head, justify="right")
    for row in report.groups:
        _goodput_row(table, row)
    if report.by != "all":
        table.add_section()
        _goodput_row(table, report.total)
    console.print(table)


def _goodput_row(table: Table, row: dict[str, Any]) -> None:
    table.add_row(
        escape(str(row["name"])),
        *(_number(row[name]) for name in ("offered", "ok", "good")),
        f"{row['compliance']:.1%}",
        *(_number(row[name]) for name in ("timeout", "cancelled", "failed", "shed", "lost")),
        *(_number(row[name]) for name in ("tokens", "good_tokens", "wasted")),
        _number(row["goodput_tokens_per_s"], 1),
        "/".join(_number(row[f"ttft_p{p}_ms"]) for p in (50, 90, 99)),
        "/".join(_number(row[f"tpot_p{p}_ms"], 1) for p in (50, 90, 99)),
    )


def show_residency(console: Console, report: ResidencyAudit) -> None:
    """How many were checked, and each violation."""
    console.print(
        f"{report.checked:,} dispatched decisions checked, {report.restricted:,} of them under a residency: "
        + (f"[red]{report.violations:,} violations[/]" if report.violations else "[green]no violation[/]"),
        highlight=False,
        soft_wrap=True,
    )
    if not report.violations:
        return
    table = Table("decision", "intent", "tenant", "at (UTC)", "served in", "residency", "allowed")
    for item in report.examples:
        allowed = ", ".join(item.allowed_regions) or "(no policy names this residency)"
        table.add_row(
            *(escape(text) for text in (item.decision_id, item.intent_id, item.tenant)),
            _time(item.at_ms),
            *(escape(text) for text in (item.region or "-", item.residency, allowed)),
        )
    console.print(table)
    if report.violations > len(report.examples):
        console.print(f"The first {len(report.examples):,} are shown.")


def _cause(cause: str) -> str:
    return f"[{_COLOURS.get(cause, 'red')}]{escape(cause)}[/]"


def _number(value: Any, digits: int = 0) -> str:
    return "-" if value is None else f"{float(value):,.{digits}f}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
