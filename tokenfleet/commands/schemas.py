"""``tokenfleet schemas export``: the contract as JSON Schema, AsyncAPI, ACLs and a table of topics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    group = typer.Typer(help="The event contract.", no_args_is_help=True)
    group.callback()(_group)
    group.command("export")(export)
    app.add_typer(group, name="schemas")


def _group() -> None:
    """The event contract."""


def export(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("docs/api"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 where it is stale.")] = False,
) -> None:
    """Write JSON Schemas, the AsyncAPI document, ACLs and the table of topics."""
    from rich.console import Console

    from schemas.export import files, stale, write

    console = Console(soft_wrap=True)
    if check:
        if old := stale(out):
            Console(stderr=True, soft_wrap=True).print(
                f"[red]error:[/] {len(old)} files in {out} are not what the models say, first {old[0]}. "
                "Run `tokenfleet schemas export` and commit what changed."
            )
            raise typer.Exit(1)
        console.print(f"The {len(files())} files in {out} are current.")
        return
    changed = write(out)
    console.print(f"{len(files())} files in {out}, {len(changed)} changed.")
