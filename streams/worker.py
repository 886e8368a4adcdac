"""One streams worker: combiner, Faust app, publisher, grants and closer in one process."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Coroutine
from typing import Any

import structlog

from minds.capacity import gpu_health, links
from minds.rows import Change
from schemas.topics import DECISIONS, GPUS, LINKS, ROLLUPS, TOPICS, Topic
from streams.capacity import TABLES, CapacityStage
from streams.closer import TABLE as OPEN_DECISIONS
from streams.closer import Closer
from streams.combiner import Combiner
from streams.event_tail import EventTail, Followed
from streams.faust_tables import build_app, changelog_topics
from streams.health import Health, Metrics, serve_health
from streams.heap import keep_freed
from streams.interval import warm_up
from streams.lag import Following, LagWatch, OffsetProbe
from streams.options import StreamsOptions
from streams.publisher import READ, Publisher
from streams.rebuild import check_format, check_layout, rewind_rollups
from streams.row_batches import RowBatches
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.dead_letters import DeadLetterWriter
from transport.producer import RowProducer, start_producer
from transport.table_reader import OnChange, TableReader

log = structlog.get_logger(__name__)

GARBAGE_S = 1.0


async def run_worker(options: StreamsOptions, stop: asyncio.Event, started: asyncio.Event) -> None:
    """Run one worker until ``stop`` is set; ``started`` is set once its parts run.

    Raises transport.errors.BrokerUnavailable where no broker answers at the start, OSError where the HTTP
    port is taken, and LayoutDiffers, TablesOutdated or GroupInUse of streams.rebuild. A component that fails
    later turns ``/healthz`` red; the others go on.
    """
    keep_freed()
    health, metrics = Health(), Metrics()
    health.add("worker", ready=lambda: None if started.is_set() else "The worker is starting.")
    web = await serve_health(health, metrics, options.host, options.port)
    tasks: list[asyncio.Task[None]] = []
    producer = reader = app = probe = None
    try:
        await asyncio.to_thread(warm_up)
        tables = changelog_topics(options.app_id, TABLES, ROLLUPS)
        changelogs = [*tables, *changelog_topics(options.app_id, (OPEN_DECISIONS,), DECISIONS)]
        made = await ensure_topics(
            options.bootstrap, TOPICS, extra=changelogs, timeout_s=options.broker_timeout_s
        )
        await check_layout(options.bootstrap, tables)
        await check_format(options.bootstrap, options.app_id, [each.name for each in tables])
        if any(each.name in made for each in tables):
            await rewind_rollups(options.bootstrap, options.app_id, now_ms())
        producer = await start_producer(options.bootstrap, linger_ms=2)
        heard: list[OnChange] = []

        def on_change(topic: Topic, change: Change) -> None:
            for each in heard:
                each(topic, change)

        reader = TableReader(options.bootstrap, READ, on_change=on_change)
        boot = f"{now_ms():x}-{os.urandom(3).hex()}"
        limit = options.dead_letter_run_limit

        def dead_letters(component: str) -> DeadLetterWriter:
            return DeadLetterWriter(producer, f"{options.worker_id}.{component}", run_limit=limit)

        probe = OffsetProbe(options.bootstrap)
        app = build_app(options)
        stage = CapacityStage(app, dead_letters("capacity"), health, metrics)
        followers: dict[str, Following] = {"capacity": stage}
        parts: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if options.close_decisions:
            closer = Closer(
                options, app, reader, producer, boot, dead_letters("closer"), probe, health, metrics
            )
            followers["closer"] = closer
            parts.append(("closer", closer.run()))
        combiner = Combiner(options, producer, dead_letters("combiner"), health, metrics)
        lag = LagWatch(probe, combiner, followers, options, health)
        link_table, gpu_table = links.Links(), gpu_health.GpuTable()
        tail = EventTail(
            options.bootstrap,
            [
                Followed(LINKS, links.LOOK_BACK_MS, link_table.take),
                Followed(GPUS, gpu_health.LOOK_BACK_MS, gpu_table.take),
            ],
            ahead_ms=options.wrong_clock_ahead_ms,
        )
        publisher = Publisher(
            options,
            stage,
            reader,
            tail,
            link_table,
            gpu_table,
            RowProducer(producer),
            RowBatches(producer),
            health,
            metrics,
        )
        heard.append(publisher.on_change)
        await reader.start()
        health.add("faust", live=lambda: _crashed(app), ready=lambda: _crashed(app))
        gc.set_threshold(200_000, 50, 100)
        gc.freeze()
        tasks.append(asyncio.create_task(_collect_garbage(), name="garbage"))
        for name, coroutine in (
            ("combiner", combiner.run()),
            ("faust", _run_faust(app)),
            ("capacity", stage.run(options.store_ms)),
            ("publisher", publisher.run()),
            ("lag", lag.run()),
            ("tail", tail.run()),
            *parts,
        ):
            tasks.append(asyncio.create_task(_guard(name, coroutine, health), name=name))
        started.set()
        log.info("streams_started", worker=options.worker_id, kafka=options.bootstrap, boot=boot)
        await stop.wait()
        log.info("streams_stopping", worker=options.worker_id)
    finally:
        await _end(tasks)
        if app is not None:
            await _stop_faust(app)
        if probe is not None:
            await probe.stop()
        if reader is not None:
            await reader.stop()
        if producer is not None:
            await producer.stop()
        await web.cleanup()


async def _collect_garbage() -> None:
    """Free cycles by the clock too: few objects are made, but some hold megabytes that were fetched."""
    while True:
        await asyncio.sleep(GARBAGE_S)
        gc.collect(1)


async def _guard(name: str, coroutine: Coroutine[Any, Any, None], health: Health) -> None:
    """A component that ends, by an exception or by itself, is a failure that the health page shows."""
    try:
        await coroutine
        health.fail(name, f"The {name} ended by itself; it should run as long as the worker.")
    except (Exception, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the worker stops; any other cancellation came out of a library, and is a crash
        log.exception("component_crashed", component=name)
        health.fail(name, f"The {name} crashed: {type(error).__name__}: {error}"[:500])


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel until all have ended.

    Once is not enough before Python 3.12: ``wait_for`` loses a cancellation that comes in the same turn of
    the loop as what it waits for, and a busy worker would never stop.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)


async def _run_faust(app: Any) -> None:
    app.finalize()
    await app.start()
    await app.wait_until_stopped()


async def _stop_faust(app: Any) -> None:
    try:
        await asyncio.wait_for(app.stop(), 10.0)
    except Exception as error:  # it stops anyway; what was not settled comes again
        log.warning("faust_not_stopped_cleanly", error=repr(error))


def _crashed(app: Any) -> str | None:
    if app.crashed:
        return f"Faust crashed: {app.crash_reason!r}."[:500]
    return None
