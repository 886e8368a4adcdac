"""The demo's course: a fresh stack, the workload, then the figures and the books, which must agree."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.live import Live

from infra.demo.books import BookReader, DemoBooks, show_books
from infra.demo.display import LiveDisplay, show_figures
from infra.demo.workload import Workload, load_workload
from infra.engines import engines_in_words
from infra.errors import StackError
from infra.layout import Layout, engine_kind, free_ports, regions_of
from infra.llamacpp.tiny_model import CONTEXT_TOKENS
from infra.llamacpp.wheel import require_installed
from infra.stack import Stack
from sim.loadgen import LoadOptions, run_load, summarise
from sim.loadgen.ledger import IntentRecord, LiveView

MARKER = ".tokenfleet-demo"
PLAIN_EVERY_S = 10.0
"""Where there is no terminal a line is printed so often."""


@dataclass(frozen=True)
class DemoOptions:
    """What ``tokenfleet demo`` was asked for."""

    data_dir: Path
    trace: Path | None = None
    duration_s: float = 90.0
    rate_rps: float | None = None
    summary: Path | None = None
    engine: str = "emulated"
    kafka: str | None = None
    clickhouse: str | None = None
    seed: int = 0


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run it; True where the books agree.

    Raises StackError or BrokerUnavailable, with one sentence, where something can't be started or read.
    """
    engine = engine_kind(options.engine)
    if options.summary is not None and not options.summary.resolve().parent.is_dir():
        raise StackError(f"The summary can't be written to {options.summary}: its folder does not exist.")
    if engine == "llama.cpp":
        require_installed()
    regions = regions_of(engine)
    layout = Layout(
        options.data_dir,
        free_ports(regions),
        kafka=options.kafka,
        clickhouse=options.clickhouse,
        regions=regions,
        engine=engine,
        seed=options.seed,
    )
    workload = load_workload(
        layout,
        trace=options.trace,
        duration_s=options.duration_s,
        rate_rps=options.rate_rps,
        seed=options.seed,
    )
    _empty(options.data_dir)
    console.print(
        f"[bold]TokenFleet demo[/]: {workload.name}, {len(workload.plan):,} intents in "
        f"{options.duration_s:g} s{_engines_note(layout, workload)}",
        highlight=False,
        soft_wrap=True,
    )
    began = time.monotonic()

    def step(name: str, what: str) -> None:
        since = f"[dim]{time.monotonic() - began:5.1f} s[/]"
        console.print(f"{since} [green]✓[/] [bold]{name:<10}[/] {what}", highlight=False, soft_wrap=True)

    with Stack(layout, on_step=step) as stack:
        records, books = asyncio.run(_play(stack, workload, options, console))
        restarts = stack.restarts()
    summary = summarise(records, duration_s=options.duration_s)
    console.print()
    show_figures(console, summary)
    show_books(console, books)
    if restarts:
        console.print(
            "Parts that died and were started again: "
            + ", ".join(f"{name} ({count}×)" for name, count in restarts.items()),
            highlight=False,
        )
    if options.summary is not None:
        figures = {**summary.to_dict(), "books": books.to_dict(), "agree": books.agree, "restarts": restarts}
        figures |= {"workload": workload.name, "run_id": workload.run_id, "engine": engine}
        figures["length_limits"] = None if workload.limits is None else asdict(workload.limits)
        options.summary.write_text(json.dumps(figures, indent=2) + "\n")
    return books.agree


def _engines_note(layout: Layout, workload: Workload) -> str:
    """What was done to the workload for the engines' sake."""
    if workload.limits is None:
        return ""
    return f", {workload.limits} for {engines_in_words(layout)} (context {CONTEXT_TOKENS:,} tokens)"


def _empty(folder: Path) -> None:
    """A fresh folder; never removes one that the demo did not make."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise StackError(
                f"The folder {folder} is not a demo's, so it is left alone; give another with --data."
            )
        lock = folder / ".lock"
        if lock.exists() and _locked(lock):
            raise StackError(
                f"Another demo is running on {folder}; wait for it, or name another folder with --data."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Made by `tokenfleet demo`, which empties this folder when it starts.\n")


def _locked(path: Path) -> bool:
    import fcntl

    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


async def _play(
    stack: Stack, workload: Workload, options: DemoOptions, console: Console
) -> tuple[list[IntentRecord], DemoBooks]:
    reader = BookReader(stack.bootstrap, stack.clickhouse_url, workload.run_id)
    await reader.begin()
    display = LiveDisplay(len(workload.plan))
    with (
        Live(display, console=console, refresh_per_second=4, transient=True)
        if console.is_terminal
        else contextlib.nullcontext()
    ):
        async with _watching(stack, display):
            ledger = await run_load(
                workload.plan,
                stack.layout.entry_urls(),
                ledger_path=options.data_dir / "ledger.jsonl",
                seed=options.seed,
                on_progress=_progress(display, console),
                options=LoadOptions(model=stack.layout.model),
            )
    ledger.close()
    stack.write_state()
    with console.status("closing the books …"):
        books = await reader.settle(ledger.records)
    return ledger.records, books


def _progress(display: LiveDisplay, console: Console):  # type: ignore[no-untyped-def]
    last_s = time.monotonic()

    def show(view: LiveView) -> None:
        nonlocal last_s
        display.update(view)
        if not console.is_terminal and time.monotonic() - last_s >= PLAIN_EVERY_S:
            last_s = time.monotonic()
            finished = sum(view.finished.values())
            console.print(
                f"{view.elapsed_ms / 1000:5.0f} s  {view.offered:,} of {view.planned:,} intents offered, "
                f"{finished:,} finished, {view.in_flight} in flight",
                highlight=False,
            )

    return show


@contextlib.asynccontextmanager
async def _watching(stack: Stack, display: LiveDisplay) -> AsyncIterator[None]:
    """Beside the load: the region table as the first router that answers sees it, and the pids on disk."""

    async def watch() -> None:
        timeout = aiohttp.ClientTimeout(total=2.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                for name in stack.layout.routers:
                    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
                        async with session.get(f"{stack.layout.url(name)}/v1/tables/regions") as answer:
                            display.regions((await answer.json())["rows"])
                            break
                await asyncio.to_thread(stack.look_after)
                await asyncio.sleep(1.0)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
