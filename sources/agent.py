"""The source agent: watches the engines that discovery names and tells the fleet what they say."""

from __future__ import annotations

import asyncio
import gc
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiokafka import AIOKafkaProducer

from schemas.operations import AlertRow
from schemas.topics import ALERTS, ENDPOINTS, TELEMETRY
from sources.agent_metrics import AgentMetrics
from sources.boots import Boot
from sources.discovery.config import EndpointConfig
from sources.discovery.follow import Discovery
from sources.drift import DriftAlerts
from sources.extras import Extras
from sources.http_client import HttpClient
from sources.outbox import TelemetryOutbox
from sources.recovery import Left, read_left
from sources.rows import RowQueue
from sources.watch import EndpointWatch, Seen
from sources.watcher import EngineWatcher, Pace
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.producer import EventProducer, RowProducer, start_producer

log = structlog.get_logger(__name__)

_GOLDEN = 0.6180339887498949
"""Steps of the golden ratio spread any number of phases over the interval, also when engines come and go."""
LINGER_MS = 50.0
"""A fifth of the usual interval: one envelope then holds several engines' telemetry."""


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
    buffer_events: int = 20_000
    """Rollups (a second of one engine rank) kept while the broker is away; 64 engines: five minutes."""


@dataclass(slots=True)
class _Links:
    """What a started agent talks through."""

    producer: AIOKafkaProducer
    events: EventProducer
    telemetry: TelemetryOutbox
    endpoints: RowQueue
    alerts: RowQueue
    client: HttpClient
    left: Left


class SourceAgent:
    """One agent process: ``start`` it and ``stop`` it once. Its HTTP server asks it how it is."""

    def __init__(self, settings: AgentSettings) -> None:
        """Reads the discovery file; raises sources.discovery.config.ConfigError."""
        self.settings = settings
        self.started_at_ms = now_ms()
        self.boot = f"{self.started_at_ms:x}-{secrets.token_hex(3)}"
        self.metrics = AgentMetrics()
        self._discovery = Discovery(settings.config)
        self._extras = Extras(settings.kafka, self._boot_of, self.metrics.registry)
        self._watchers: dict[str, EngineWatcher] = {}
        self._arrivals = 0
        self._links: _Links | None = None
        self._cleaned = False
        self._follow_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, make the topics and begin to scrape; raises transport.errors.BrokerUnavailable."""
        kafka, timeout_s = self.settings.kafka, self.settings.broker_timeout_s
        await ensure_topics(kafka, (ENDPOINTS, TELEMETRY, *Extras.topics), timeout_s=timeout_s)
        left = await read_left(kafka, self.settings.agent_id)
        # Envelopes have lingered already, and rows are few: a second wait would only wake the client in vain.
        producer = await start_producer(kafka, linger_ms=0, timeout_s=timeout_s)
        events = EventProducer(
            producer, producer_id=self.settings.agent_id, boot=self.boot, linger_ms=LINGER_MS
        )
        rows = RowProducer(producer)
        self._links = _Links(
            producer,
            events,
            TelemetryOutbox(events, buffer_events=self.settings.buffer_events),
            RowQueue(rows, ENDPOINTS, epoch=self.started_at_ms),
            RowQueue(rows, ALERTS, epoch=self.started_at_ms),
            HttpClient(),
            left,
        )
        self._links.endpoints.start()
        self._links.alerts.start()
        self._apply(self._discovery.endpoints())
        await self._extras.start(events, self._links.alerts)
        await self._extras.apply(self._discovery.config, self._discovery.endpoints())
        self._follow_task = asyncio.create_task(self._follow(), name="discovery")
        # What there is now lives as long as the process: looking through it again and again finds nothing.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        log.info(
            "source_started",
            agent=self.settings.agent_id,
            endpoints=len(self._watchers),
            interval_ms=self.settings.interval_ms,
        )

    async def stop(self) -> None:
        """Stop scraping, send what waits (bounded), and close. Rows stay: the engines are still there."""
        tasks = [task for watcher in self._watchers.values() if (task := watcher.cancel()) is not None]
        if self._follow_task is not None:
            self._follow_task.cancel()
            tasks.append(self._follow_task)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._discovery.close()
        await self._extras.stop()
        if self._links is not None:
            links = self._links
            await links.client.close()
            links.telemetry.close()
            await asyncio.gather(
                links.endpoints.close(timeout_s=2.0),
                links.alerts.close(timeout_s=2.0),
                links.events.close(timeout_s=2.0),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(links.producer.stop(), 2.0)
        log.info("source_stopped", agent=self.settings.agent_id)

    def watches(self) -> list[EndpointWatch]:
        """What is known of each engine now."""
        return [watcher.watch for watcher in self._watchers.values()]

    def unready(self) -> list[str]:
        """Why the agent is not ready, as sentences; an empty list where it is."""
        if self._links is None:
            return ["The agent has not started."]
        reasons = []
        if waiting := [watch.config.instance for watch in self.watches() if not watch.settled]:
            reasons.append(f"Not yet known whether they answer: {', '.join(waiting[:10])}.")
        links = self._links
        if not (links.endpoints.healthy and links.alerts.healthy and links.telemetry.healthy):
            reasons.append(f"The broker does not take records; {links.telemetry.waiting} events wait.")
        if not self._discovery.complete:
            reasons.append("Not every list of engines was had yet.")
        if dead := [name for name, watcher in self._watchers.items() if watcher.stopped]:
            reasons.append(f"No longer watched after an internal error: {', '.join(dead[:10])}.")
        return reasons + self._extras.unready()

    def exposition(self) -> bytes:
        """The agent's own metrics as Prometheus text."""
        metrics = self.metrics
        if self._links is not None:
            links = self._links
            metrics.events_waiting.set(links.telemetry.waiting)
            metrics.events_dropped.set(links.telemetry.dropped)
            metrics.rollups_held.set(links.telemetry.buffered)
            metrics.rows_written.set(links.endpoints.written + links.alerts.written)
        metrics.drift_alerts.set(sum(len(watch.drift.firing) for watch in self.watches()))
        metrics.discovery_errors.set(len(self._discovery.errors))
        metrics.config_ok.set(0 if self._discovery.errors else 1)
        return metrics.text()

    async def _follow(self) -> None:
        told: list[str] = []
        while True:
            try:
                if await self._discovery.poll():
                    self._apply(self._discovery.endpoints())
                    await self._extras.apply(self._discovery.config, self._discovery.endpoints())
                self._clean_up()
            except Exception:
                log.exception("discovery_failed_inside", keeping="the last good list")
            if (errors := self._discovery.errors) != told:
                for reason in errors:
                    if reason not in told:
                        log.error("discovery_not_current", reason=reason, keeping="the last good list")
                told = errors
            await asyncio.sleep(self.settings.config_poll_s)

    def _apply(self, endpoints: list[EndpointConfig]) -> None:
        """Make what is watched the same as this list."""
        wanted = {endpoint.instance: endpoint for endpoint in endpoints}
        for instance in [name for name in self._watchers if name not in wanted]:
            self._write_alerts(self._watchers[instance].watch.drift.forget(now_ms()))
            self._unwatch(instance)
            self._started.endpoints.remove(instance)
            log.info("endpoint_removed", instance=instance)
        for instance, config in wanted.items():
            old = self._watchers.get(instance)
            if old is not None and _same_engine(old.watch.config, config):
                old.watch.reconfigure(config)
                self._put_row(old.watch)
                continue
            if old is not None:
                self._unwatch(instance)
            self._watch(config)

    def _watch(self, config: EndpointConfig) -> None:
        links, settings = self._started, self.settings
        watch = EndpointWatch(
            config,
            source=settings.agent_id,
            previous=links.left.previous(config.instance, config.url, now_ms()),
        )
        for alert in links.left.alerts_of(config.instance):
            watch.drift.resume(alert)
        phase = (self._arrivals * _GOLDEN) % 1.0
        self._arrivals += 1
        watcher = EngineWatcher(
            watch,
            links.client,
            self.metrics,
            self._hand_on,
            pace=Pace(settings.interval_ms, settings.scrape_timeout_s),
            phase=phase,
        )
        self._watchers[config.instance] = watcher
        watcher.start()
        log.info("endpoint_watched", instance=config.instance, engine=config.engine, url=config.url)

    def _unwatch(self, instance: str) -> None:
        self._watchers.pop(instance).cancel()
        self.metrics.forget(instance)

    def _clean_up(self) -> None:
        """Once: remove what an earlier life of this agent registered and no list has any more."""
        left = self._started.left
        if self._cleaned or not self._discovery.complete:
            return
        self._cleaned = True
        for instance, row in left.rows.items():
            if instance in self._watchers:
                continue
            self._started.endpoints.remove(instance, row.pools[0])
            gone = DriftAlerts(instance)
            for alert in left.alerts_of(instance):
                gone.resume(alert)
            self._write_alerts(gone.forget(now_ms()))
            log.info("endpoint_removed", instance=instance, reason="no list has it any more")

    @property
    def _started(self) -> _Links:
        if self._links is None:
            raise RuntimeError("The agent has not started.")
        return self._links

    def _hand_on(self, watch: EndpointWatch, seen: Seen) -> None:
        self._started.telemetry.put(seen.telemetry)
        self._put_row(watch)
        self._write_alerts(seen.alerts)

    def _boot_of(self, instance: str) -> Boot | None:
        watcher = self._watchers.get(instance)
        return None if watcher is None else watcher.watch.boot

    def _put_row(self, watch: EndpointWatch) -> None:
        if row := watch.row_if_due(now_ms()):
            self._started.endpoints.put(row, row.pools[0])

    def _write_alerts(self, alerts: list[AlertRow]) -> None:
        for alert in alerts:
            self._started.alerts.put(alert, alert.alert_id)
            log.warning("drift_alert", state=alert.state, subject=alert.subject, summary=alert.summary)


def _same_engine(old: EndpointConfig, new: EndpointConfig) -> bool:
    """Can the watch go on (boots, reachability), or is it another process that needs a fresh one?"""

    def identity(config: EndpointConfig) -> tuple[object, ...]:
        return config.url, config.metrics_url, config.engine, config.model_in_metrics

    return identity(old) == identity(new)
