"""``tokenfleet bench``: the benchmarks of ``bench/``, as tables and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    group = typer.Typer(help="Benchmarks; each states the machine.", no_args_is_help=True)
    group.callback()(_group)
    group.command("envelopes")(envelopes)
    app.add_typer(group, name="bench")


def _group() -> None:
    """Benchmarks; each states the machine."""


def envelopes(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to FILE.")
    ] = None,
) -> None:
    """Decoding outcomes: one event a record, and envelopes of 50."""
    from rich.console import Console
    from rich.table import Table

    try:
        from bench import envelopes as benchmark
        from bench.machine import machine
    except ModuleNotFoundError:
        Console(stderr=True).print("[red]error:[/] Benchmarks are in the repository, not in the package.")
        raise typer.Exit(1) from None
    figures = benchmark.run()
    sizes = figures["record_bytes"]
    made = Table("events per CPU-second", title="Decoding outcomes", title_justify="left")
    made.add_column(f"1 event a record ({sizes['1']} bytes)", justify="right")
    made.add_column(f"50 a record ({sizes['50']:,} bytes)", justify="right")
    for name, rates in figures["events_per_cpu_s"].items():
        made.add_row(name, f"{rates['1']:,.0f}", f"{rates['50']:,.0f}")
    console = Console()
    console.print(made)
    _finish(console, machine(), figures, json_file)


def _finish(console: Any, machine: dict[str, Any], figures: dict[str, Any], json_file: Path | None) -> None:
    import json

    console.print(
        f"[dim]{machine['processor']}, {machine['cores']} cores, Python {machine['python']}[/]",
        soft_wrap=True,
    )
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, **figures}, indent=2) + "\n")
