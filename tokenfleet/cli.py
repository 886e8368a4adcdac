"""``tokenfleet``: one CLI for everything. Each command lives in ``tokenfleet.commands``."""

from __future__ import annotations

import importlib
import sys

import typer

COMMANDS = (
    "demo",
    "up",
    "streams",
    "router",
    "sink",
    "source",
    "engines",
    "policy",
    "audit",
    "dead",
    "schemas",
    "bench",
    "sim",
    "doctor",
)

app = typer.Typer(
    name="tokenfleet",
    help="An event-streaming control plane for fleets of LLM inference instances.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

for _name in COMMANDS:
    importlib.import_module(f"tokenfleet.commands.{_name}").register(app)


def main() -> None:
    """Run the CLI; Ctrl-C ends it quietly with status 130."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
