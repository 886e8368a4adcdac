"""``tokenfleet audit``: what happened to a request, goodput, and residency, from ClickHouse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import typer

if TYPE_CHECKING:
    from sinks.query_client import QueryClient

T = TypeVar("T")
Url = Annotated[
    str,
    typer.Option(
        envvar="TOKENFLEET_CLICKHOUSE_URL",
        help="The sink's endpoint, or a ClickHouse server with user:password@.",
    ),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE.")]
DEFAULT_URL = "http://127.0.0.1:8123"


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    group = typer.Typer(help="Audits from what ClickHouse has stored.", no_args_is_help=True)
    group.command("request")(request)
    group.command("goodput")(goodput)
    group.command("residency")(residency)
    app.add_typer(group, name="audit")


def request(
    id: Annotated[str, typer.Argument(metavar="ID", help="A decision or intent id.")],
    url: Url = DEFAULT_URL,
    json_file: Json = None,
) -> None:
    """The whole story of one request: attempts, decisions with what they saw, outcomes."""
    from sinks.audits import request_story
    from tokenfleet.commands.audit_views import show_story

    stories = _ask(url, lambda client: request_story(client, id))
    for story in stories:
        show_story(_console(), story)
    _write(json_file, {"id": id, "intents": [story.to_dict() for story in stories]})


def goodput(
    since: Annotated[str, typer.Option(help="How far back: 90s, 15m, 2h, 7d.")] = "15m",
    by: Annotated[str, typer.Option(help="class, region, tenant or all.")] = "class",
    url: Url = DEFAULT_URL,
    json_file: Json = None,
) -> None:
    """Goodput and compliance, in intents and in tokens."""
    from dataclasses import asdict

    from sinks.audits import AuditError, GoodputBy, parse_since
    from sinks.audits import goodput as ask_goodput
    from tokenfleet.commands.audit_views import show_goodput

    if by not in get_args(GoodputBy):
        raise _failure(f"--by takes {', '.join(get_args(GoodputBy))}, not {by!r}.")
    grouping = cast("GoodputBy", by)
    try:
        since_s = parse_since(since)
    except AuditError as error:
        raise _failure(str(error)) from None
    report = _ask(url, lambda client: ask_goodput(client, since_s=since_s, by=grouping))
    show_goodput(_console(), report)
    _write(json_file, asdict(report))


def residency(
    since: Annotated[str, typer.Option(help="How far back: 90s, 15m, 2h, 7d.")] = "90d",
    grace: Annotated[
        str, typer.Option(help="How long a router may still act on a policy that was replaced.")
    ] = "5s",
    url: Url = DEFAULT_URL,
    json_file: Json = None,
) -> None:
    """Every dispatched decision against the regions that the policy allowed; exit 1 where one was wrong."""
    from dataclasses import asdict

    from sinks.audits import AuditError, parse_since
    from sinks.audits import residency as ask_residency
    from tokenfleet.commands.audit_views import show_residency

    try:
        since_s, grace_ms = parse_since(since), parse_since(grace) * 1000
    except AuditError as error:
        raise _failure(str(error)) from None
    report = _ask(url, lambda client: ask_residency(client, since_s=since_s, grace_ms=grace_ms))
    show_residency(_console(), report)
    _write(json_file, asdict(report))
    if report.violations:
        raise typer.Exit(1)


def _ask(url: str, question: Callable[[QueryClient], Awaitable[T]]) -> T:
    import asyncio

    from sinks.audits import AuditError
    from sinks.query_client import QueryClient, QueryError

    async def ask() -> T:
        return await question(QueryClient(url))

    try:
        return asyncio.run(ask())
    except (AuditError, QueryError) as error:
        raise _failure(str(error)) from None


def _failure(sentence: str) -> typer.Exit:
    from rich.console import Console

    Console(stderr=True).print(f"error: {sentence}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(1)


def _console() -> Any:
    from rich.console import Console

    return Console()


def _write(path: Path | None, content: Any) -> None:
    import json

    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        raise _failure(f"{path} can't be written: {error.strerror or error}.") from None
