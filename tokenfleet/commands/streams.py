"""``tokenfleet streams``: one streams worker, and the rebuilding of its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from streams.options import StreamsOptions


def register(app: typer.Typer) -> None:
    """Add the commands to the CLI."""
    commands = typer.Typer(invoke_without_command=True, no_args_is_help=False)
    commands.callback()(streams)
    commands.command("rebuild")(rebuild)
    app.add_typer(commands, name="streams")


def streams(
    context: typer.Context,
    kafka: Annotated[str, typer.Option(help="The broker, HOST:PORT.")] = "127.0.0.1:9092",
    worker_id: Annotated[
        str,
        typer.Option(help="Stable and unique: a restarted worker gets its partitions back at once by it."),
    ] = "streams-0",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port for /healthz, /readyz, /metrics; 0: any free.")
    ] = 9106,
    host: Annotated[str, typer.Option(help="Address of the worker's own HTTP.")] = "127.0.0.1",
    data: Annotated[Path, typer.Option(help="Folder for what the worker keeps on disk.")] = Path(
        ".tokenfleet/streams"
    ),
    flush_ms: Annotated[
        float, typer.Option(min=20, max=5_000, help="Length of an interval of the combiner, in ms.")
    ] = 250.0,
    session_ms: Annotated[
        float,
        typer.Option(
            min=1_000, max=15_000, help="How long a worker that is gone keeps its partitions, in ms."
        ),
    ] = 6_000.0,
    app_id: Annotated[str, typer.Option(help="Prefix of the groups and changelogs.")] = "tokenfleet",
    broker_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="How long to wait for a broker at the start.")
    ] = 15.0,
    lost_after_ms: Annotated[
        float, typer.Option(min=0, help="A decision is lost so long after its deadline, in ms.")
    ] = 30_000.0,
    closing: Annotated[
        bool, typer.Option("--closing/--no-closing", help="Close decisions that nobody else will.")
    ] = True,
    router_silent_ms: Annotated[
        float, typer.Option(min=1_000, help="A router is dead after so much silence, in ms.")
    ] = 15_000.0,
) -> None:
    """Run one streams worker until SIGTERM or Ctrl-C: combiner, tables, published rows, grants, closing."""
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from minds.closing import ClosingTerms
    from streams.options import StreamsOptions
    from streams.rebuild import GroupInUse, LayoutDiffers, TablesOutdated
    from transport.errors import BrokerUnavailable

    _check_names({"--worker-id": worker_id, "--app-id": app_id})
    options = StreamsOptions(
        bootstrap=kafka,
        worker_id=worker_id,
        data_dir=data,
        host=host,
        port=port,
        app_id=app_id,
        flush_ms=flush_ms,
        session_ms=session_ms,
        broker_timeout_s=broker_timeout_s,
        close_decisions=closing,
        closing=ClosingTerms(horizon_ms=lost_after_ms, silent_ms=router_silent_ms),
    )
    try:
        asyncio.run(_run(options))
    except (BrokerUnavailable, GroupInUse, LayoutDiffers, TablesOutdated) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"The worker can't start on {host}:{port} with {data}: {error.strerror or error}.")


def rebuild(
    kafka: Annotated[str, typer.Option(help="The broker, HOST:PORT.")] = "127.0.0.1:9092",
    app_id: Annotated[str, typer.Option(help="Prefix of the groups and changelogs.")] = "tokenfleet",
    from_raw: Annotated[
        bool,
        typer.Option(
            "--from-raw", help="Make the topics of pools anew too, with this version's number of partitions."
        ),
    ] = False,
) -> None:
    """Empty the capacity tables, with all workers stopped: the next start builds them from the log."""
    import asyncio

    from schemas.topics import ROLLUPS
    from streams.capacity import TABLES
    from streams.faust_tables import changelog_topics
    from streams.options import StreamsOptions
    from streams.rebuild import CannotRebuild, GroupInUse, rebuild_from_raw, rebuild_tables
    from transport.clock import now_ms
    from transport.errors import BrokerUnavailable

    _check_names({"--app-id": app_id})
    changelogs = changelog_topics(app_id, TABLES, ROLLUPS)
    group = StreamsOptions(kafka, "rebuild", Path(), app_id=app_id).combiner_group
    work = (
        rebuild_from_raw(kafka, app_id, group, changelogs, now_ms())
        if from_raw
        else rebuild_tables(kafka, app_id, changelogs, now_ms())
    )
    try:
        asyncio.run(work)
    except (BrokerUnavailable, GroupInUse, CannotRebuild) as error:
        _fail(str(error))


def _check_names(said: dict[str, str]) -> None:
    """End with status 1 where an option's value is no identifier."""
    from pydantic import TypeAdapter, ValidationError

    from schemas.base import Name

    for option, value in said.items():
        try:
            TypeAdapter(Name).validate_python(value)
        except ValidationError:
            _fail(f"{option} {value!r} is no identifier: use letters, digits and . _ : @ / + - only.")


async def _run(options: StreamsOptions) -> None:
    import asyncio
    import signal

    from streams.logs import log_to_stderr
    from streams.worker import run_worker

    log_to_stderr()
    stop, started = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    worker = asyncio.create_task(run_worker(options, stop, started), name="worker")

    def end() -> None:
        if stop.is_set() or not started.is_set():
            worker.cancel()  # a second signal, or it still waits for the broker
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await worker
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


def _fail(sentence: str) -> NoReturn:
    """Say what is wrong and end with status 1."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"error: {sentence}", "red"), soft_wrap=True)
    raise typer.Exit(1)
