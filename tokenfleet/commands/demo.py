"""``tokenfleet demo``: the whole loop on a workload, ending with figures and checked books."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the CLI."""
    app.command("demo")(demo)


def demo(
    trace: Annotated[
        Path | None,
        typer.Option(help="Azure CSV or Mooncake JSONL trace, gzip too; default: the built-in generator."),
    ] = None,
    duration: Annotated[float, typer.Option(min=5, max=86_400, help="Seconds to replay.")] = 90.0,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, max=1000, help="Requests a second; default: the trace's own time, or 6."),
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Also write the figures to this file, as JSON.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Which engines serve: emulated, or llama.cpp (real, on the CPU).")
    ] = "emulated",
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Your Kafka instead of the embedded one.")
    ] = None,
    clickhouse: Annotated[
        str | None, typer.Option(metavar="URL", help="Your ClickHouse instead of the embedded one.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder for all that the demo keeps; emptied first.")] = Path(
        ".tokenfleet/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 0,
) -> None:
    """Three regions and an entry without GPUs, their engines, two routers, a Faust worker and the sink."""
    from rich.console import Console
    from rich.text import Text

    from infra.demo.run import DemoOptions, run_demo
    from infra.errors import StackError
    from infra.signals import exit_on_termination
    from tokenfleet.logs import quiet_logs
    from transport.errors import BrokerUnavailable

    quiet_logs()
    console = Console()
    options = DemoOptions(
        data_dir=data,
        trace=trace,
        duration_s=duration,
        rate_rps=rate,
        summary=summary,
        engine=engine,
        kafka=kafka,
        clickhouse=clickhouse,
        seed=seed,
    )
    try:
        with exit_on_termination():
            agree = run_demo(options, console)
    except (StackError, BrokerUnavailable) as error:
        Console(stderr=True).print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        raise typer.Exit(1) from None
    if not agree:
        raise typer.Exit(1)
