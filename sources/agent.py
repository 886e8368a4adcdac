"""The source agent: watches the engines that discovery names and tells the fleet what they say."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog
from aiokafka import AIOKafkaProducer

from schemas.topics import ENDPOINTS, TELEMETRY
from sources.agent_metrics import AgentMetrics
from sources.discovery import EndpointConfig, WatchedFile
from sources.registry import EndpointRegistry
from sources.scraper import Scrape, scrape
from sources.watch import EndpointWatch, Seen
from transport.admin import ensure_topics
from transport.clock import monotonic_ms, now_ms
from transport.producer import EventProducer, RowProducer, start_producer

log = structlog.get_logger(__name__)

_GOLDEN = 0.6180339887498949
"""Steps of the golden ratio spread any number of phases over the interval, also when engines come and go."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent is told at start. Times in the unit of their names."""

    kafka: str
    config: Path
    agent_id: str = "source-0"
    interval_ms: float = 250.0
    scrape_timeout_s: float = 1.0
    config_poll_s: float = 1.0
    broker_timeout_s: float = 15.0


@dataclass(slots=True)
class _Watched:
    watch: EndpointWatch
    task: asyncio.Task[None]


class SourceAgent:
    """One agent process: ``start`` it and ``stop`` it once. Its HTTP server asks it how it is."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.started_at_ms = now_ms()
        self.boot = f"{self.started_at_ms:x}-{secrets.token_hex(3)}"
        self.metrics = AgentMetrics()
        self._file = WatchedFile.load(settings.config)
        self._watched: dict[str, _Watched] = {}
        self._arrivals = 0
        self._producer: AIOKafkaProducer | None = None
        self._events: EventProducer | None = None
        self._registry: EndpointRegistry | None = None
        self._session: aiohttp.ClientSession | None = None
        self._follow_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, make the topics and begin to scrape; raises transport.errors.BrokerUnavailable."""
        kafka, timeout_s = self.settings.kafka, self.settings.broker_timeout_s
        await ensure_topics(kafka, (ENDPOINTS, TELEMETRY), timeout_s=timeout_s)
        self._producer = await start_producer(kafka, timeout_s=timeout_s)
        self._events = EventProducer(self._producer, producer_id=self.settings.agent_id, boot=self.boot)
        self._registry = EndpointRegistry(RowProducer(self._producer), epoch=self.started_at_ms)
        self._registry.start()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=4),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # each scrape as a whole is bounded
        )
        self._apply(self._file.config.endpoints)
        self._follow_task = asyncio.create_task(self._follow(), name="discovery")
        log.info(
            "source_started",
            agent=self.settings.agent_id,
            endpoints=len(self._watched),
            interval_ms=self.settings.interval_ms,
        )

    async def stop(self) -> None:
        """Stop scraping, send what waits (bounded), and close. Rows stay: the engines are still there."""
        tasks = [one.task for one in self._watched.values()]
        if self._follow_task is not None:
            tasks.append(self._follow_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        if self._registry is not None and self._events is not None:
            await asyncio.gather(self._registry.close(timeout_s=2.0), self._events.close(timeout_s=2.0))
        if self._producer is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._producer.stop(), 2.0)
        log.info("source_stopped", agent=self.settings.agent_id)

    def watches(self) -> list[EndpointWatch]:
        """What is known of each engine now."""
        return [one.watch for one in self._watched.values()]

    def unready(self) -> list[str]:
        """Why the agent is not ready, as sentences; an empty list where it is."""
        if self._registry is None or self._events is None:
            return ["The agent has not started."]
        reasons = []
        if waiting := [watch.config.instance for watch in self.watches() if not watch.settled]:
            reasons.append(f"Not yet known whether they answer: {', '.join(waiting[:10])}.")
        if not self._registry.healthy or not self._events.healthy:
            reasons.append(f"The broker does not take records; {self._events.waiting} events wait.")
        if dead := [name for name, one in self._watched.items() if one.task.done()]:
            reasons.append(f"No longer watched after an internal error: {', '.join(dead[:10])}.")
        return reasons

    def exposition(self) -> bytes:
        """The agent's own metrics as Prometheus text."""
        if self._events is not None and self._registry is not None:
            self.metrics.events_waiting.set(self._events.waiting)
            self.metrics.events_dropped.set(self._events.dropped)
            self.metrics.rows_written.set(self._registry.written)
        self.metrics.config_ok.set(0 if self._file.error else 1)
        return self.metrics.text()

    async def _follow(self) -> None:
        told: str | None = None
        while True:
            await asyncio.sleep(self.settings.config_poll_s)
            if await asyncio.to_thread(self._file.poll):
                self._apply(self._file.config.endpoints)
            if self._file.error != told:
                told = self._file.error
                if told:
                    log.error("discovery_file_unusable", reason=told, keeping="the last good list")

    def _apply(self, endpoints: list[EndpointConfig]) -> None:
        """Make what is watched the same as this list."""
        wanted = {endpoint.instance: endpoint for endpoint in endpoints}
        for instance in [name for name in self._watched if name not in wanted]:
            self._unwatch(instance)
            self._rows.remove(instance)
            log.info("endpoint_removed", instance=instance)
        for instance, config in wanted.items():
            old = self._watched.get(instance)
            if old is not None and _same_engine(old.watch.config, config):
                old.watch.reconfigure(config)
                self._put_row(old.watch)
                continue
            if old is not None:
                self._unwatch(instance)
            watch = EndpointWatch(config)
            phase = (self._arrivals * _GOLDEN) % 1.0
            self._arrivals += 1
            task = asyncio.create_task(self._scrape_for_ever(watch, phase), name=f"watch-{instance}")
            self._watched[instance] = _Watched(watch, task)
            log.info("endpoint_watched", instance=instance, engine=config.engine, url=config.url)

    def _unwatch(self, instance: str) -> None:
        self._watched.pop(instance).task.cancel()
        with suppress(KeyError):
            self.metrics.forget(instance)

    @property
    def _rows(self) -> EndpointRegistry:
        if self._registry is None:
            raise RuntimeError("The agent has not started.")
        return self._registry

    def _put_row(self, watch: EndpointWatch) -> None:
        if row := watch.row_if_due(now_ms()):
            self._rows.put(row)

    async def _scrape_for_ever(self, watch: EndpointWatch, phase: float) -> None:
        interval_ms = self.settings.interval_ms
        due_ms = monotonic_ms() + phase * interval_ms
        while True:
            await asyncio.sleep(max(0.0, due_ms - monotonic_ms()) / 1000.0)
            try:
                await self._scrape_once(watch)
            except Exception:
                # A bug in reading one engine must not silence the others, nor this one for ever.
                log.exception("scrape_failed_inside", instance=watch.config.instance)
                await asyncio.sleep(1.0)
            # Ticks that a slow engine overran are skipped, never made up for in a burst.
            due_ms += interval_ms * max(1, -((due_ms - monotonic_ms()) // interval_ms))

    async def _scrape_once(self, watch: EndpointWatch) -> None:
        if self._session is None or self._events is None:
            raise RuntimeError("The agent has not started.")
        before, told = (watch.settled, watch.reachable), _names(watch)
        got = await scrape(
            self._session,
            watch.config.url,
            watch.mapping,
            timeout_s=self.settings.scrape_timeout_s,
            ask_health=watch.ask_health(),
        )
        seen = watch.take(got)
        for event in seen.telemetry:
            self._events.emit(TELEMETRY, event)
        self._put_row(watch)
        self._count(watch, got, seen)
        self._tell(watch, seen, before, told)

    def _count(self, watch: EndpointWatch, got: Scrape, seen: Seen) -> None:
        instance, metrics = watch.config.instance, self.metrics
        metrics.scrapes.labels(instance, seen.failure.kind if seen.failure else "ok").inc()
        metrics.scrape_seconds.observe(got.scrape_ms / 1000.0)
        metrics.reachable.labels(instance).set(watch.reachable)
        metrics.set_problems(instance, dict(Counter(problem.kind for problem in seen.problems)))
        if seen.new_boot:
            metrics.boots.labels(instance).inc()

    def _tell(
        self, watch: EndpointWatch, seen: Seen, before: tuple[bool, bool], told: frozenset[tuple[str, str]]
    ) -> None:
        instance = watch.config.instance
        if (watch.settled, watch.reachable) != before:
            reason = seen.failure.sentence if seen.failure else None
            log.info(
                "endpoint_reachable" if watch.reachable else "endpoint_unreachable",
                instance=instance,
                reason=reason,
            )
        if seen.new_boot:
            log.info("endpoint_boot", instance=instance)
        for problem in seen.problems:
            if (problem.kind, problem.reading or "") not in told:
                event = "endpoint_drift" if problem.drift else "endpoint_problem"
                log.warning(event, instance=instance, kind=problem.kind, reason=problem.sentence)


def _names(watch: EndpointWatch) -> frozenset[tuple[str, str]]:
    return frozenset((problem.kind, problem.reading or "") for problem in watch.problems)


def _same_engine(old: EndpointConfig, new: EndpointConfig) -> bool:
    """Can the watch go on (boots, reachability), or is it another process that needs a fresh one?"""
    return (old.url, old.engine, old.served_model) == (new.url, new.engine, new.served_model)
