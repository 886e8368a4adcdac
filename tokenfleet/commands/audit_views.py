"""How audits look on a terminal. Unknown figures are shown as a dash, never as 0."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sinks.audits import Goodput, IntentStory, ResidencyAudit

_COLOURS = {"ok": "green", "shed": "yellow", "lost": "magenta"}


def show_story(console: Console, story: IntentStory) -> None:
    """One intent: a summary, its attempts, what each logged decision saw, and what is odd."""
    console.print(
        f"[bold]Intent {escape(story.intent_id)}[/] of tenant {escape(story.tenant)}", highlight=False
    )
    if story.summary is None:
        console.print("Not closed: no outcome is stored yet.")
    else:
        _summary(console, story.summary)
    _show_attempts(console, story)
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


def _show_attempts(console: Console, story: IntentStory) -> None:
    """A line for the decision and a line for each outcome of every attempt."""
    for decisions, outcomes in story.attempts:
        decision = decisions[0] if decisions else {}
        first = decision or outcomes[0]
        verdict = decision.get("verdict", "not logged")
        rule = f" ({decision['rule']})" if decision.get("rule") else ""
        to = f" to {first['instance']} in {first['region']}" if first["instance"] else ""
        console.print(
            f"[bold]attempt {first['attempt']}[/]  {_time(first['at_ms'])}  {escape(first['router'])} "
            f"[bold]{escape(verdict + rule)}[/]{escape(to)}  [dim]{escape(first['decision_id'])}[/]",
            highlight=False,
            soft_wrap=True,
        )
        for outcome in outcomes:
            predicted = _number(first.get("predicted_ttft_ms"))
            tokens = _number(outcome.get("output_tokens"))
            console.print(
                f"           {_time(outcome['at_ms'])}  {_cause(outcome['cause'])}"
                + (" [dim](inferred)[/]" if outcome.get("inferred") else "")
                + f"  TTFT {_number(outcome.get('ttft_ms'))} ms (predicted {predicted}), "
                f"TPOT {_number(outcome.get('tpot_ms'), 1)} ms, {tokens} tokens",
                highlight=False,
                soft_wrap=True,
            )
        if not outcomes:
            console.print("           still open: no outcome is stored yet", highlight=False)


def _seen(console: Console, decision: dict[str, Any]) -> None:
    given = decision["input"]
    table = Table(
        "instance",
        "region",
        "running",
        "waiting",
        "own",
        "age ms",
        "score",
        "excluded by",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
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
    """In intents and in tokens: a row a group and a total."""
    if report.total is None:
        console.print(f"No intent that began in the last {report.since_s} s has been closed.")
        return
    ends = ("timeout", "cancelled", "failed", "shed", "lost")
    rows = [*report.groups, *([report.total] if report.by != "all" else [])]
    console.print(f"[bold]Goodput of the last {report.since_s} s by {report.by}[/]", highlight=False)
    intents = _figures(report.by, "offered", "ok", "good", "good %", *ends)
    latencies = ("TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99")
    tokens = _figures(report.by, "tokens", "good", "wasted", "good/s", *latencies)
    for row in rows:
        name = escape(str(row["name"]))
        intents.add_row(
            name,
            *(_number(row[key]) for key in ("offered", "ok", "good")),
            f"{row['compliance']:.1%}",
            *(_number(row[end]) for end in ends),
        )
        tokens.add_row(
            name,
            *(_number(row[key]) for key in ("tokens", "good_tokens", "wasted")),
            _number(row["goodput_tokens_per_s"], 1),
            *(_number(row[f"ttft_p{p}_ms"]) for p in (50, 90, 99)),
            *(_number(row[f"tpot_p{p}_ms"], 1) for p in (50, 90, 99)),
        )
    console.print("in intents", intents, "in output tokens; latencies in ms", tokens, highlight=False)


def _figures(first: str, *heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first)
    for head in heads:
        table.add_column(head, justify="right")
    return table


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
