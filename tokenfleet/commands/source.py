"""``tokenfleet source``: the agent that watches engines, and ``source read`` to see what it would read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from sources.agent import AgentSettings
    from sources.engines.histograms import Totals
    from sources.engines.mapping import Mapping
    from sources.engines.reader import EngineSample

group = typer.Typer(
    name="source",
    help="Watch engines and tell the fleet what they say; `source read` shows what would be read.",
    no_args_is_help=False,
)


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    app.add_typer(group)


@group.callback(invoke_without_command=True)
def source(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with the list `endpoints`; read again when it changes.")
    ] = None,
    kafka: Annotated[str, typer.Option(help="The broker, HOST:PORT.")] = "127.0.0.1:9092",
    agent_id: Annotated[
        str, typer.Option("--id", help="This agent's id: letters, digits and . _ : @ / + -")
    ] = "source-0",
    interval_ms: Annotated[
        float, typer.Option(min=10, max=60_000, help="Time between two scrapes of an engine.")
    ] = 250.0,
    scrape_timeout_s: Annotated[
        float, typer.Option(min=0.05, max=30, help="An engine that takes longer has not answered.")
    ] = 1.0,
    buffer_events: Annotated[
        int, typer.Option(min=100, help="Seconds of engine ranks kept while the broker is away.")
    ] = 20_000,
    host: Annotated[str, typer.Option(help="Address of the agent's own HTTP.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Its port for /healthz, /readyz, /metrics; 0: any free.")
    ] = 9105,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from pydantic import TypeAdapter, ValidationError

    from schemas.base import Name
    from sources.agent import AgentSettings
    from sources.discovery.config import ConfigError
    from transport.errors import BrokerUnavailable

    if config is None:
        _fail("--config FILE is missing: the YAML list of engines to watch.")
    try:
        TypeAdapter(Name).validate_python(agent_id)
    except ValidationError:
        _fail(f"--id {agent_id!r} is no identifier: use letters, digits and . _ : @ / + - only.")
    settings = AgentSettings(
        kafka=kafka,
        config=config,
        agent_id=agent_id,
        interval_ms=interval_ms,
        scrape_timeout_s=scrape_timeout_s,
        buffer_events=buffer_events,
    )
    try:
        asyncio.run(_run(settings, host, port))
    except (ConfigError, BrokerUnavailable) as error:
        _fail(str(error))


async def _run(settings: AgentSettings, host: str, port: int) -> None:
    """The port first: a taken one should not leave rows behind."""
    import asyncio
    import signal

    import structlog
    from aiohttp import web

    from sources.agent import SourceAgent
    from sources.http import application
    from tokenfleet.logs import log_to_stderr

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log_to_stderr()
    agent = SourceAgent(settings)
    runner = web.AppRunner(application(agent), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            _fail(f"Can't listen on {host}:{port}: {error.strerror or error}. Choose another --port.")
        structlog.get_logger(__name__).info("source_http", host=host, port=runner.addresses[0][1])
        starting = asyncio.create_task(agent.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await stopping
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        await agent.stop()
        await runner.cleanup()


@group.command("read")
def read(
    where: Annotated[str, typer.Argument(metavar="FILE-or-URL", help="A saved metrics page, or an engine.")],
    engine: Annotated[
        str | None, typer.Option(help="Which engine it is; default: told by its metrics.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, where the engine's metrics do not name it.")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the readings as JSON; -: only that.")
    ] = None,
) -> None:
    """What would the fleet read from this engine: each reading, its quality, the metric it came from."""
    import asyncio
    import json

    from sources.engines.mapping import UnknownEngine, engines, mapping_of
    from sources.engines.reader import guess_engine, read_engine
    from sources.problems import Unreadable

    try:
        mapping = mapping_of(engine) if engine else None
        if where.startswith(("http://", "https://")):
            body = asyncio.run(_fetch(where, mapping))
        else:
            body = _file(Path(where))
        if mapping is None:
            guessed = guess_engine(body)
            if guessed is None:
                _fail(f"{where} has no metric of an engine we know ({', '.join(engines())}); see --engine.")
            mapping = mapping_of(guessed)
        samples = read_engine(body, mapping, default_model=model, latencies=True)
    except (UnknownEngine, Unreadable) as error:
        _fail(f"{where}: {error}" if isinstance(error, Unreadable) else str(error))
    if json_to is not None:
        text = json.dumps([_as_json(sample) for sample in samples], indent=2) + "\n"
        if json_to == "-":
            typer.echo(text, nl=False)
            return
        try:
            Path(json_to).write_text(text, encoding="utf-8")
        except OSError as error:
            _fail(f"{json_to} can't be written: {error.strerror or error}.")
    _show(where, mapping, samples)


@group.command("engines")
def list_engines(
    engine: Annotated[
        str | None, typer.Argument(metavar="[ENGINE]", help="Show how this one is read, as Markdown.")
    ] = None,
) -> None:
    """Which engines can be read, and which of their metrics fills which reading."""
    from sources.engines.describe import overview, table
    from sources.engines.mapping import UnknownEngine, mapping_of

    if engine is None:
        typer.echo(overview())
        return
    try:
        mapping = mapping_of(engine)
    except UnknownEngine as error:
        _fail(str(error))
    typer.echo(f"{mapping.about}\n\n{table(mapping)}")


async def _fetch(url: str, mapping: Mapping | None) -> bytes:
    from urllib.parse import urlsplit

    from sources.engines.mapping import mapping_of
    from sources.http_client import HttpClient
    from sources.scraper import scrape

    # The path and the bounds are the agent's own, so that this shows what the agent would see.
    used = mapping or mapping_of("vllm")
    base = url.rstrip("/").removesuffix(used.metrics_path)
    if urlsplit(base).path:
        used, base = used.model_copy(update={"metrics_path": ""}), url
    async with HttpClient() as client:
        got = await scrape(client, base, used, timeout_s=5.0)
    if got.body is None:
        _fail(got.failure.sentence if got.failure else f"{url} gave nothing.")
    return got.body


def _file(path: Path) -> bytes:
    from sources.prometheus_text import MAX_BYTES

    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        _fail(f"{path} can't be read: {error.strerror or error}.")


def _latency(totals: Totals) -> dict[str, Any]:
    """Count, mean and quantiles in milliseconds of all that was measured since the boot."""
    from minds.histograms import sketch_of
    from minds.sketch import quantiles

    count = sum(totals.counts)
    p50, p99 = quantiles(sketch_of(totals), (0.5, 0.99)) or (None, None)
    mean = totals.sum_ms / count if count else None
    return {"count": count, "mean_ms": mean, "p50_ms": p50, "p99_ms": p99, "metric": totals.metric}


def _as_json(sample: EngineSample) -> dict[str, Any]:
    from dataclasses import asdict

    readings = {
        name: {"value": one.value, "quality": one.quality, "metric": sample.provenance.get(name)}
        for name, one in [*sample.gauges, *sample.counters]
    }
    problems = [
        {"kind": one.kind, "reading": one.reading, "metric": one.metric, "sentence": one.sentence}
        for one in sample.problems
    ]
    return {
        "rank": sample.rank,
        "model": sample.model,
        **readings,
        "latencies": {one.name: _latency(one) for one in sample.latencies},
        "role": sample.role,
        "lora": None if sample.lora is None else asdict(sample.lora),
        "process_started_at_ms": sample.process_started_at_ms,
        "problems": problems,
    }


def _show(where: str, mapping: Mapping, samples: list[EngineSample]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a pipe has no width, and folded metric names can't be searched for
    colours = {"fresh": "green", "stale": "yellow", "unknown": "red"}
    for sample in samples:
        title = f"{mapping.engine}, rank {sample.rank}, model {sample.model or 'not named'}"
        table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
        table.add_column("reading")
        table.add_column("value", justify="right")
        table.add_column("quality")
        table.add_column("from", overflow="fold")
        for name, one in [*sample.gauges, *sample.counters]:
            value = "-" if one.value is None else f"{one.value:,.10g}"
            origin = sample.provenance.get(name) or sample.not_yet.get(name) or mapping.not_told.get(name, "")
            table.add_row(name, value, Text(one.quality, colours[one.quality]), Text(origin))
        console.print(table)
        if sample.latencies:
            console.print(_latency_table(sample))
        for said in _labels(sample):
            console.print(Text(said))
        started = sample.process_started_at_ms
        if started is not None:
            from datetime import UTC, datetime

            at = datetime.fromtimestamp(started / 1000, UTC).isoformat(timespec="milliseconds")
            console.print(Text(f"The process started at {at}."))
        for problem in sample.problems:
            console.print(Text(f"{problem.kind}: {problem.sentence}", "yellow"))
    if not any(sample.problems for sample in samples):
        console.print(Text(f"No problems in {where}.", "green"))


def _latency_table(sample: EngineSample) -> Any:
    from rich import box
    from rich.table import Table

    table = Table("latency since the boot", box=box.SIMPLE_HEAD)
    for column in ("count", "mean ms", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    table.add_column("from", overflow="fold")
    for one in sample.latencies:
        figures = _latency(one)
        shown = ["-" if figures[name] is None else f"{figures[name]:,.1f}" for name in _FIGURES]
        table.add_row(one.name, f"{figures['count']:,}", *shown, one.metric)
    return table


_FIGURES = ("mean_ms", "p50_ms", "p99_ms")


def _labels(sample: EngineSample) -> list[str]:
    said = []
    if sample.role is not None:
        said.append(f"Its role is {sample.role}.")
    if sample.lora is not None:
        running, waiting = (
            ", ".join(names) or "none" for names in (sample.lora.running, sample.lora.waiting)
        )
        slots = "an untold number of" if sample.lora.slots is None else sample.lora.slots
        said.append(f"LoRA adapters running: {running}; waiting: {waiting}; {slots} slots.")
    return said


def _fail(sentence: str) -> NoReturn:
    """Say what is wrong and end with status 1."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"error: {sentence}", "red"), soft_wrap=True)
    raise typer.Exit(1)
