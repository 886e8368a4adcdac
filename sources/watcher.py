"""The shell around one engine's watch: scrapes on time, hands on what came of it, says what changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from sources.agent_metrics import AgentMetrics, InstanceMetrics
from sources.http_client import HttpClient
from sources.scraper import Scrape, scrape
from sources.watch import EndpointWatch, Seen
from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often an engine is scraped, and for how long it may take."""

    interval_ms: float
    timeout_s: float


class EngineWatcher:
    """Scrapes one engine for ever. ``phase`` (0 to 1) is its place in the interval: engines are spread."""

    def __init__(
        self,
        watch: EndpointWatch,
        client: HttpClient,
        metrics: AgentMetrics,
        hand_on: Callable[[EndpointWatch, Seen], None],
        *,
        pace: Pace,
        phase: float,
    ) -> None:
        self.watch = watch
        self._client = client
        self._hand_on = hand_on
        self._pace = pace
        self._phase = phase
        self._scrape_seconds = metrics.scrape_seconds
        self._metrics: InstanceMetrics = metrics.of(watch.config.instance)
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to scrape."""
        self._task = asyncio.create_task(self._run(), name=f"watch-{self.watch.config.instance}")

    @property
    def stopped(self) -> bool:
        """True once it scrapes no more (cancelled, or by an error that nobody expected)."""
        return self._task is not None and self._task.done()

    def cancel(self) -> asyncio.Task[None] | None:
        """Stop scraping; the task to wait for."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        interval_ms = self._pace.interval_ms
        due_ms = monotonic_ms() + self._phase * interval_ms
        while True:
            await asyncio.sleep(max(0.0, due_ms - monotonic_ms()) / 1000.0)
            try:
                await self._scrape_once()
            except Exception:
                # A bug in reading one engine must not silence the others, nor this one for ever.
                log.exception("scrape_failed_inside", instance=self.watch.config.instance)
                await asyncio.sleep(1.0)
            # Ticks that a slow engine overran are skipped, never made up for in a burst.
            due_ms += interval_ms * max(1, -((due_ms - monotonic_ms()) // interval_ms))

    async def _scrape_once(self) -> None:
        watch, config = self.watch, self.watch.config
        before = (watch.settled, watch.reachable)
        got = await scrape(
            self._client,
            config.url,
            watch.mapping,
            metrics_url=config.metrics_url,
            timeout_s=self._pace.timeout_s,
            ask_health=watch.ask_health(),
        )
        seen = watch.take(got)
        self._hand_on(watch, seen)
        self._count(got, seen)
        self._tell(seen, before)

    def _count(self, got: Scrape, seen: Seen) -> None:
        self._metrics.scraped(seen.failure.kind if seen.failure else "ok")
        self._scrape_seconds.observe(got.scrape_ms / 1000.0)
        self._metrics.reachable(self.watch.reachable)
        self._metrics.problems(Counter(problem.kind for problem in seen.problems) if seen.problems else {})
        if seen.new_boot:
            self._metrics.booted()

    def _tell(self, seen: Seen, before: tuple[bool, bool]) -> None:
        """Log changes once: of reachability, of the boot, and problems that were not there before."""
        watch, instance = self.watch, self.watch.config.instance
        if (watch.settled, watch.reachable) != before:
            log.info(
                "endpoint_reachable" if watch.reachable else "endpoint_unreachable",
                instance=instance,
                reason=seen.failure.sentence if seen.failure else None,
            )
        if seen.new_boot:
            log.info("endpoint_boot", instance=instance)
        if not seen.problems and not self._told:
            return
        for problem in seen.problems:
            if (problem.kind, problem.reading or "") not in self._told:
                event = "endpoint_drift" if problem.drift else "endpoint_problem"
                log.warning(event, instance=instance, kind=problem.kind, reason=problem.sentence)
        self._told = frozenset((problem.kind, problem.reading or "") for problem in seen.problems)
