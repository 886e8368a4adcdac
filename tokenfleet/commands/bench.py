"""``tokenfleet bench``: the benchmarks of ``bench/``, as tables and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

_JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to FILE.")
]


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    group = typer.Typer(help="Benchmarks; each states the machine.", no_args_is_help=True)
    group.callback()(_group)
    group.command("envelopes")(envelopes)
    group.command("sim")(sim)
    group.command("streams")(streams)
    group.command("source")(source)
    app.add_typer(group, name="bench")


def _group() -> None:
    """Benchmarks; each states the machine."""


def envelopes(
    json_file: _JsonFile = None,
) -> None:
    """Decoding outcomes: one event a record, and envelopes of 50."""
    from rich.console import Console
    from rich.table import Table

    benchmark = _benchmark("envelopes")
    figures = benchmark.run()
    sizes = figures["record_bytes"]
    made = Table("events per CPU-second", title="Decoding outcomes", title_justify="left")
    made.add_column(f"1 event a record ({sizes['1']} bytes)", justify="right")
    made.add_column(f"50 a record ({sizes['50']:,} bytes)", justify="right")
    for name, rates in figures["events_per_cpu_s"].items():
        made.add_row(name, f"{rates['1']:,.0f}", f"{rates['50']:,.0f}")
    console = Console()
    console.print(made)
    _finish(console, figures, json_file)


def sim(
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Conversation trace (default: the one in ../shared/traces, if any)."
        ),
    ] = None,
    large_seconds: Annotated[
        float, typer.Option(min=0.0, help="Simulated seconds of the 1,000 instances; 0 leaves them out.")
    ] = 20.0,
    json_file: _JsonFile = None,
) -> None:
    """The simulator: engine steps per CPU-second."""
    from rich.console import Console
    from rich.table import Table

    benchmark = _benchmark("sim")
    if trace is not None and not trace.exists():
        _fail(f"There is no trace file {trace}.")
    figures = benchmark.run(trace or benchmark.TRACE, large_seconds)
    made = Table("run", title="Simulated engine steps", title_justify="left")
    for column in ("steps", "CPU s", "steps per CPU-second"):
        made.add_column(column, justify="right")
    rows = {f"8 instances, {name}": run for name, run in figures["eight_instances"].items()}
    if "thousand_instances" in figures:
        rows["1,000 instances, 3 regions, lor"] = figures["thousand_instances"]
    for name, run in rows.items():
        made.add_row(name, f"{run['steps']:,.0f}", f"{run['cpu_s']:.2f}", f"{run['steps_per_cpu_s']:,.0f}")
    console = Console()
    console.print(made)
    if "thousand_instances" in figures:
        hour = figures["thousand_instances"]
        console.print(
            f"An hour of it: {hour['hour_steps']:,.0f} steps in {hour['hour_cpu_s'] / 60.0:.1f} CPU minutes."
        )
    _finish(console, figures, json_file)


def source(
    engines: Annotated[int, typer.Option(min=1, max=1000, help="Engines that one agent watches.")] = 64,
    hz: Annotated[float, typer.Option(min=0.1, max=20, help="Scrapes of each engine a second.")] = 4.0,
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long to measure.")] = 20.0,
    kafka: Annotated[
        str | None, typer.Option(help="A broker, HOST:PORT; default: one is started for the benchmark.")
    ] = None,
    gpus: Annotated[
        bool, typer.Option("--gpus", help="The agent also samples eight GPUs of a stand-in NVML.")
    ] = False,
    json_file: _JsonFile = None,
) -> None:
    """A source agent: share of a core and memory for so many engines."""
    from rich.console import Console
    from rich.table import Table

    from infra.errors import StackError

    benchmark = _benchmark("source")
    try:
        figures = benchmark.run(engines=engines, hz=hz, seconds=seconds, kafka=kafka, eight_gpus=gpus)
    except (StackError, RuntimeError, OSError) as error:
        _fail(str(error))
    title = f"{engines} engines at {hz:g} Hz, a page of {figures['page_bytes'] / 1000:.0f} kB"
    made = Table("figure", title=title, title_justify="left")
    made.add_column("value", justify="right")
    made.add_row("share of a core", f"{figures['cpu_core_share']:.1%}")
    made.add_row("CPU a scrape", f"{figures['cpu_ms_per_scrape']:.2f} ms")
    made.add_row("memory (RSS)", f"{figures['rss_mb']:.0f} MB")
    made.add_row("scrapes a second", f"{figures['scrapes_per_s']:.1f}")
    made.add_row("failed scrapes", f"{figures['failed_scrapes']}")
    made.add_row("dropped events", f"{figures['events_dropped']}")
    console = Console()
    console.print(made)
    _finish(console, figures, json_file)


def streams(
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="The Python of an environment with bench/requirements-peers.txt; without it this app alone.",
        ),
    ] = None,
    events: Annotated[
        int, typer.Option(min=0, help="Backlog to catch up on; slow peers get a part. 0 leaves it out.")
    ] = 3_000_000,
    steady_seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds at a steady rate, for freshness; 0 leaves it out.")
    ] = 20.0,
    rate: Annotated[int, typer.Option(min=1, help="Events a second of the steady part.")] = 50_000,
    instances: Annotated[
        int, typer.Option(min=0, help="Instances that report each second in the table; 0 leaves it out.")
    ] = 0,
    quiet: Annotated[int, typer.Option(min=0, help="Instances of the table that report nothing.")] = 45_000,
    json_file: _JsonFile = None,
) -> None:
    """The streams app against a naive Faust agent, quixstreams and bytewax on real Kafka."""
    from rich.console import Console
    from rich.table import Table

    benchmark = _benchmark("streams.run")
    if peers is not None and not peers.exists():
        _fail(f"There is no Python at {peers}.")
    from infra.errors import StackError

    try:
        # absolute, but not resolved: a venv's python is a link, and what it links to lacks the packages
        python = peers.absolute() if peers is not None else None
        figures = benchmark.run(python, events, steady_seconds, rate, instances, quiet)
    except (RuntimeError, StackError) as error:
        _fail(str(error))
    console = Console()
    if events:
        made = Table("events per CPU-second", title="Catching up", title_justify="left")
        made.add_column("1 event a record", justify="right")
        made.add_column("50 a record", justify="right")
        for name, rates in figures["events_per_cpu_s"].items():
            made.add_row(name, *(f"{rates[case]:,.0f}" for case in ("1", "50")))
        console.print(made)
    if "steady" in figures:
        made = Table("steady", "events/s", title="Append to published row", title_justify="left")
        for column in ("p50 ms", "p99 ms", "cores", "memory MB"):
            made.add_column(column, justify="right")
        for name, found in figures["steady"].items():
            memory = " to ".join(str(size) for size in found["rss_mb"])
            figures_of = (found["p50_ms"], found["p99_ms"], found["cores"], memory)
            made.add_row(name, f"{found['events_per_s']:,}", *(str(figure) for figure in figures_of))
        console.print(made)
    if "table" in figures:
        made = Table("live table", "", title_justify="left")
        for name, value in figures["table"].items():
            made.add_row(name, f"{value:,}")
        console.print(made)
    _finish(console, figures, json_file)


def _benchmark(name: str) -> Any:
    """The module ``bench.<name>``; it is imported only when it is asked for."""
    import importlib

    try:
        return importlib.import_module(f"bench.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "bench":
            raise
        _fail("Benchmarks are in the repository, not in the package.")


def _fail(sentence: str) -> NoReturn:
    from rich.console import Console

    Console(stderr=True).print(f"error: {sentence}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def _finish(console: Console, figures: dict[str, Any], json_file: Path | None) -> None:
    import json

    from bench.machine import machine

    here = machine()
    console.print(
        f"[dim]{here['processor']}, {here['cores']} cores, Python {here['python']}[/]", soft_wrap=True
    )
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": here, **figures}, indent=2) + "\n")
