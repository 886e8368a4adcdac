"""The part of ``tokenfleet engines`` that runs real llama.cpp servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from infra.llamacpp.fleet import RealEngine
    from infra.processes import Supervisor


def run_real_engines(
    count: int, *, size: str, port_base: int, region: str, host: str, endpoints: Path | None
) -> None:
    """Run the servers until Ctrl-C or SIGTERM; a server that dies is started again.

    Prints one sentence and exits with 1 where they can't be started.
    """
    from rich.console import Console

    from infra.errors import StackError
    from infra.signals import exit_on_termination
    from tokenfleet.logs import quiet_logs

    quiet_logs()
    console = Console()
    try:
        with (
            exit_on_termination(),
            _running(count, size, port_base, region, host) as (engines, supervisor),
            _listed(endpoints, engines),
        ):
            _print_table(console, engines, supervisor)
            _watch(console, supervisor)
    except StackError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except (KeyboardInterrupt, SystemExit):
        console.print("Stopped; no llama.cpp server is left running.")


@contextlib.contextmanager
def _running(
    count: int, size: str, port_base: int, region: str, host: str
) -> Iterator[tuple[list[RealEngine], Supervisor]]:
    """The servers, all of them or none; model and logs are in a folder that goes with them."""
    import tempfile

    from infra.errors import StackError
    from infra.llamacpp.fleet import RealEngine
    from infra.llamacpp.tiny_model import write_model
    from infra.llamacpp.wheel import require_installed
    from infra.ports import check_port_free
    from infra.processes import Supervisor

    require_installed()
    if not 0 < port_base <= 65_536 - count:
        raise StackError(f"{count} engines need ports from 1 to 65535; choose another --port-base.")
    engines = [
        RealEngine(f"{region}-{index}", region, port_base + index, size, host) for index in range(count)
    ]
    for engine in engines:
        check_port_free(engine.port, engine.instance)
    with tempfile.TemporaryDirectory(prefix="tokenfleet-engines-") as folder:
        model_file = write_model(Path(folder) / "model.gguf", size)
        with Supervisor(Path(folder)) as supervisor:
            supervisor.start_many([engine.child(model_file) for engine in engines])
            yield engines, supervisor


@contextlib.contextmanager
def _listed(path: Path | None, engines: list[RealEngine]) -> Iterator[None]:
    """The discovery list while the servers run; it goes before they do, so it never names a dead one."""
    from infra.llamacpp.fleet import write_endpoints
    from sim.engines import remove_endpoints

    if path is None:
        yield
        return
    write_endpoints(path, engines)
    try:
        yield
    finally:
        remove_endpoints(path)


def _watch(console: Console, supervisor: Supervisor) -> None:
    """Say which server was started again, for ever; raises StackError where one is given up."""
    import time

    restarts = dict.fromkeys((child.name for child in supervisor.children), 0)
    while True:
        time.sleep(0.5)
        supervisor.check()
        for child in supervisor.children:
            if child.restarts > restarts[child.name] and child.pid is not None:
                restarts[child.name] = child.restarts
                console.print(f"{child.name} had died and runs again, process {child.pid}.", highlight=False)


def _print_table(console: Console, engines: list[RealEngine], supervisor: Supervisor) -> None:
    from rich import box
    from rich.table import Table

    title = f"{len(engines)} llama.cpp servers, {engines[0].size} random model; Ctrl-C stops them"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("instance", "region", "pool", "engine", "process", "URL"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("instance", "URL"))
    for engine in engines:
        pid = supervisor.child(engine.instance).pid
        table.add_row(engine.instance, engine.region, engine.pool, "llama.cpp", str(pid), engine.url)
    console.print(table)
