"""``tokenfleet router``: one stateless router."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("router")
    def router(
        kafka: Annotated[str, typer.Option(help="The broker, HOST:PORT.")],
        router_id: Annotated[str, typer.Option("--id", help="The router's id.")] = "router-0",
        entry_region: Annotated[str, typer.Option(help="The region where its clients come in.")] = "local",
        host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="The port to listen on.", min=0, max=65535)] = 8080,
        idle_token_s: Annotated[
            float, typer.Option(help="End a stream that brings no token for so long.", min=0.1)
        ] = 30.0,
        drain_s: Annotated[
            float, typer.Option(help="Let requests finish for so long when stopped.", min=0.0)
        ] = 10.0,
        sample: Annotated[
            float, typer.Option(help="Share of decisions logged with their full input.", min=0.0, max=1.0)
        ] = 0.01,
    ) -> None:
        """Route OpenAI-compatible requests to the fleet's instances."""
        import asyncio

        from rich.console import Console

        from router.options import RouterOptions
        from router.service import PortTaken, run_router
        from tokenfleet.logs import log_to_stderr
        from transport.errors import BrokerUnavailable

        log_to_stderr()
        options = RouterOptions(
            router=router_id,
            entry_region=entry_region,
            host=host,
            port=port,
            idle_token_ms=idle_token_s * 1000.0,
            drain_s=drain_s,
            sample_ratio=sample,
        )
        try:
            asyncio.run(run_router(kafka, options))
        except (BrokerUnavailable, PortTaken) as error:
            Console(stderr=True).print(f"error: {error}", markup=False, soft_wrap=True)
            raise typer.Exit(1) from None
