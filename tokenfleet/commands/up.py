"""``tokenfleet up``: the local stack, kept running, with every address printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    """Add the command to the CLI."""
    app.command("up")(up)


def up(
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Your Kafka instead of the embedded one.")
    ] = None,
    clickhouse: Annotated[
        str | None, typer.Option(metavar="URL", help="Your ClickHouse instead of the embedded one.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder for all that the stack keeps.")] = Path(".tokenfleet/up"),
    policy: Annotated[Path | None, typer.Option(help="Policy file; default: the demo's.")] = None,
    engine: Annotated[
        str, typer.Option(help="Which engines serve: emulated, or llama.cpp (real, on the CPU).")
    ] = "emulated",
    model_size: Annotated[str, typer.Option(help="llama.cpp's random model: tiny or small.")] = "tiny",
    speed: Annotated[float, typer.Option(min=0.01, max=100, help="Emulated engines' speed.")] = 1.0,
    any_ports: Annotated[
        bool, typer.Option("--any-ports", help="Use free ports instead of the documented ones.")
    ] = False,
) -> None:
    """Run the whole loop until Ctrl-C: Kafka, engines, source, Faust worker, routers, sink."""
    import time

    from rich.console import Console
    from rich.text import Text

    from infra.errors import StackError
    from infra.layout import DEMO_POLICY, Layout, engine_kind, fixed_ports, free_ports, regions_of
    from infra.signals import exit_on_termination
    from infra.stack import Stack
    from tokenfleet.logs import quiet_logs
    from transport.errors import BrokerUnavailable

    quiet_logs()
    console = Console()
    try:
        kind = engine_kind(engine)
        regions = regions_of(kind)
        ports = (
            free_ports(regions) if any_ports else fixed_ports(embedded_kafka=kafka is None, regions=regions)
        )
        layout = Layout(
            data,
            ports,
            kafka=kafka,
            clickhouse=clickhouse,
            policy=policy or DEMO_POLICY,
            regions=regions,
            engine=kind,
            model_size=model_size,
            speed=speed,
        )
        with exit_on_termination(), Stack(layout, on_step=_step(console)) as stack:
            console.print(
                f"\nReady. Ask for something:\n  [cyan]curl {layout.url('router-0')}/v1/chat/completions "
                f'-d \'{{"model": "{layout.model}", "max_tokens": 20, "messages": '
                '[{"role": "user", "content": "hello"}]}\'[/]\n'
                f"  [cyan]curl '{stack.clickhouse_url}/?query=SELECT+*+FROM+tokenfleet.intents+LIMIT+5'[/]\n"
                "Ctrl-C ends it all; the data stays in "
                f"{layout.data_dir}.",
                soft_wrap=True,
                highlight=False,
            )
            while True:
                time.sleep(1.0)
                stack.look_after()
    except (StackError, BrokerUnavailable) as error:
        Console(stderr=True).print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("\nStopped; nothing is left running.")


def _step(console: Console) -> Callable[[str, str], None]:
    def show(name: str, what: str) -> None:
        console.print(f"[green]✓[/] [bold]{name:<10}[/] {what}", highlight=False, soft_wrap=True)

    return show
