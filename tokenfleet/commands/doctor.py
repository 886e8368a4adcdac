"""`tokenfleet doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from infra.doctor import Check

_MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "absent": "[dim]–[/]", "missing": "[red]✗[/]"}


def register(app: typer.Typer) -> None:
    """Add the command to the CLI."""
    app.command("doctor")(doctor)


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Fetch what can be fetched: the jars of Apache Kafka.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", dir_okay=False, help="Also write the report to FILE, as JSON."
        ),
    ] = None,
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Where the stack would keep its data.")] = Path(
        ".tokenfleet"
    ),
) -> None:
    """Say what this machine has of what TokenFleet needs; exit 1 when something needed is missing."""
    from rich.console import Console

    from infra.doctor import all_needed_present, as_json, run_checks

    console = Console()
    fixed = _fetch_jars(console) if fix else True
    with console.status("looking around …"):
        checks = run_checks(data_dir)
    _show(console, checks)
    healthy = all_needed_present(checks)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(as_json(checks), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            console.print(f"[red]The report cannot be written to {json_file}: {error.strerror}.[/]")
            raise typer.Exit(1) from error
    if not healthy or not fixed:
        raise typer.Exit(1)


def _fetch_jars(console: Console) -> bool:
    """Fetch the broker's jars behind a progress bar; say whether they are there now."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from infra.errors import StackError
    from infra.kafka.jars import KAFKA_VERSION, fetch_jars, jars_cached, pinned_jars

    if jars_cached():
        return True
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"Fetching Apache Kafka {KAFKA_VERSION}", total=len(pinned_jars()))
            fetch_jars(progress=lambda done, total: bar.update(task, completed=done, total=total))
    except StackError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return False
    return True


def _show(console: Console, checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        detail = Text(check.found)
        if check.remedy:
            detail.append(f"\n→ {check.remedy}", style="yellow" if check.state == "missing" else "dim")
        table.add_row(_MARKS[check.state], check.name, detail)
    console.print(table)
    missing = [check.name for check in checks if check.state == "missing"]
    if missing:
        console.print(f"\n[red]Missing: {', '.join(missing)}.[/]")
    else:
        console.print("\n[green]Ready: the local stack can run here.[/]")
