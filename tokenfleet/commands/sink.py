"""``tokenfleet sink``: Kafka into ClickHouse, and the read-only ClickHouse endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the CLI."""
    app.command("sink")(sink)


def sink(
    kafka: Annotated[str, typer.Option(help="The broker, HOST:PORT.")] = "127.0.0.1:9092",
    data: Annotated[Path, typer.Option(help="Folder of the embedded ClickHouse; one sink at a time.")] = Path(
        ".tokenfleet/sink"
    ),
    host: Annotated[
        str, typer.Option(help="Address of the endpoint; it asks for no password.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the endpoint.")] = 8123,
    clickhouse: Annotated[
        str | None,
        typer.Option(
            envvar="TOKENFLEET_CLICKHOUSE",
            help="Write to this server, http[s]://user:password@host:port, instead of the embedded engine.",
        ),
    ] = None,
    app_id: Annotated[str, typer.Option(help="Prefix of the group whose lag is monitored.")] = "tokenfleet",
) -> None:
    """Store the log in ClickHouse, each event once, and answer queries on it over HTTP."""
    import asyncio

    from rich.console import Console

    try:
        import clickhouse_connect  # noqa: F401

        from sinks.clickhouse.engine import StoreError
        from sinks.clickhouse.migrations import MigrationError
        from sinks.consumer import LogMismatch
        from sinks.service import PortTaken, SinkOptions, run_sink
    except ModuleNotFoundError as error:
        Console(stderr=True).print(
            f"error: The sink needs the package {error.name}; install tokenfleet[sink].",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(1) from None
    from tokenfleet.logs import log_to_stderr
    from transport.errors import BrokerUnavailable

    log_to_stderr()
    options = SinkOptions(kafka=kafka, data=data, host=host, port=port, clickhouse_url=clickhouse, app=app_id)
    try:
        asyncio.run(run_sink(options))
    except (BrokerUnavailable, StoreError, MigrationError, LogMismatch, PortTaken) as error:
        Console(stderr=True).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
