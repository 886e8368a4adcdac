"""``tokenfleet engines``: start inference engines by hand, emulated ones or real llama.cpp servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from sim.engines import EmulatedInstance, InstanceSpec


def register(app: typer.Typer) -> None:
    """Add the command to the CLI."""
    app.command("engines")(engines)


_FOR_BOTH = frozenset({"real", "model_size", "port_base", "region", "host", "endpoints"})
"""Parameters that ``--real`` leaves a meaning; all others describe the emulator."""


def engines(
    context: typer.Context,
    count: Annotated[int, typer.Option(min=1, max=256, help="How many instances.")] = 1,
    params: Annotated[str, typer.Option(help="Step-model parameters, S1 to S4.")] = "S2",
    port_base: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the first; the others follow.")
    ] = 8_101,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of a single instance; 0: any free port for each."),
    ] = None,
    region: Annotated[str, typer.Option(help="Region, also the prefix of instance ids.")] = "local",
    model: Annotated[str, typer.Option(help="Model name that is served.")] = "llama-70b",
    version: Annotated[str, typer.Option(help="Model version; pools are model@version.")] = "v1",
    speed: Annotated[float, typer.Option(help="Times as fast as the real engine.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of output lengths and words.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    kv_tokens: Annotated[
        int | None, typer.Option(help="KV cache in tokens; default: the parameter set's.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in a batch.")] = 256,
    max_queued_requests: Annotated[
        int | None, typer.Option(help="Refuse requests while so many wait; default: no limit.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with `instances: [...]`; instead of all options about instances."),
    ] = None,
    endpoints: Annotated[
        Path | None,
        typer.Option(help="Write the instances as a static discovery list (YAML); removed on exit."),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Serve /emulator/state, restart and freeze.")
    ] = False,
    drain_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds that open requests get to finish on SIGTERM or Ctrl-C.")
    ] = 0.0,
    real: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Start so many real llama.cpp servers instead, on the CPU."),
    ] = None,
    model_size: Annotated[str, typer.Option(help="Their random model: tiny or small.")] = "tiny",
) -> None:
    """Start emulated engines that behave like vLLM, or real ones; Ctrl-C or SIGTERM stops them."""
    if real is not None:
        from tokenfleet.commands.real_engines import run_real_engines

        _refuse_emulator_options(context)
        run_real_engines(
            real, size=model_size, port_base=port_base, region=region, host=host, endpoints=endpoints
        )
        return
    import asyncio

    from pydantic import ValidationError
    from rich.console import Console

    from sim.engines import EmulatorError, InstanceSpec, load_specs

    errors = Console(stderr=True)
    try:
        if config is not None:
            specs = load_specs(config)
        else:
            specs = [
                InstanceSpec(
                    instance=f"{region}-{index}",
                    region=region,
                    model=model,
                    version=version,
                    params=params,
                    host=host,
                    port=_port(index, count, port_base, port),
                    speed=speed,
                    seed=seed,
                    kv_tokens=kv_tokens,
                    max_num_seqs=max_num_seqs,
                    max_queued_requests=max_queued_requests,
                )
                for index in range(count)
            ]
        asyncio.run(_serve(specs, endpoints, admin=admin, drain_s=drain_s))
    except ValidationError as error:
        first = error.errors()[0]
        where = "--" + ".".join(str(part) for part in first["loc"]).replace("_", "-") if first["loc"] else ""
        errors.print(f"Wrong option {where}: {first['msg']}.".replace(" :", ":"), style="red", markup=False)
        raise typer.Exit(1) from None
    except EmulatorError as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _refuse_emulator_options(context: typer.Context) -> None:
    """An option that would silently do nothing is an error."""
    from rich.console import Console

    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in _FOR_BOTH:
            flag = "--" + name.replace("_", "-")
            Console(stderr=True).print(
                f"{flag} describes emulated engines; it can't be used with --real.", style="red"
            )
            raise typer.Exit(1)


def _port(index: int, count: int, port_base: int, port: int | None) -> int:
    """The port of instance ``index``: a single given one, any free one, or one of a row."""
    from sim.engines import EmulatorError

    if port == 0:
        return 0
    if port is not None and count > 1:
        raise EmulatorError(
            f"--port {port} fits one instance only; use --port-base for {count}, or --port 0."
        )
    chosen = port if port is not None else port_base + index
    if chosen > 65_535:
        raise EmulatorError(
            f"Port {chosen} does not exist; choose a --port-base of at most {65_536 - count}."
        )
    return chosen


async def _serve(specs: list[InstanceSpec], endpoints: Path | None, *, admin: bool, drain_s: float) -> None:
    """Run until a signal; the endpoint list goes before the ports, so it never names a dead one."""
    import asyncio
    import signal

    from rich.console import Console

    from sim.engines import EmulatedFleet, remove_endpoints, write_endpoints

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with EmulatedFleet(specs, admin=admin, drain_s=drain_s) as fleet:
        try:
            if endpoints is not None:
                write_endpoints(endpoints, fleet.instances)
            console = Console()
            _print_table(console, fleet.instances)
            await stop.wait()
            console.print("Stopping the emulated engines.")
        finally:
            if endpoints is not None:
                remove_endpoints(endpoints)


def _print_table(console: Console, instances: list[EmulatedInstance]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{len(instances)} emulated engines; Ctrl-C stops them", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for heading in ("instance", "region", "pool", "engine", "KV tokens", "URL"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("instance", "URL"))
    for instance in instances:
        spec = instance.spec
        table.add_row(
            spec.instance,
            spec.region,
            spec.pool,
            f"{spec.params} {spec.speed:g}x",
            f"{spec.kv_capacity_tokens:,}",
            instance.url,
        )
    console.print(table)
