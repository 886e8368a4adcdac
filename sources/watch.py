"""What an agent knows of one engine: from scrapes to telemetry, drift alerts, and the row that registers it.

Pure apart from what it is told: ``now_ms`` is an argument, scrapes come in, events and rows go out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas.endpoints import EndpointRow, Role
from schemas.operations import AlertRow
from sources.boots import UNSEEN, Boot, BootTracker, Evidence, Previous
from sources.discovery.config import EndpointConfig
from sources.drift import DriftAlerts
from sources.engines.histograms import Totals
from sources.engines.mapping import PROCESS_START, Mapping, mapping_of
from sources.engines.reader import EngineSample, choose, read_engine
from sources.problems import Problem, Unreadable
from sources.scraper import Failure, Scrape
from sources.telemetry import Moment, telemetry

FAILURES_UNTIL_UNREACHABLE = 2
"""One lost answer is a blip: the last readings age by themselves. Two in a row are an engine that is away."""
HEALTH_EVERY = 4
"""Health is asked with every fourth scrape (each second at 4 Hz), and with each one while it is not well."""
LATENCIES_EVERY_MS = 1_000
"""Histograms are most of a page and are totals, so once a second loses nothing and costs a quarter."""
HEARTBEAT_MS = 5_000
VALID_FOR_MS = 15_000.0


@dataclass(slots=True)
class Seen:
    """What one scrape brought: events (structs) to send, alerts to write, and what people should know."""

    telemetry: list[Any] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    alerts: list[AlertRow] = field(default_factory=list)
    failure: Failure | None = None
    new_boot: bool = False


class EndpointWatch:
    """Follows one engine. Until its first answer it is unreachable, and its boot is the one called unseen.

    ``source`` is the agent's id; ``previous`` the boot that it last wrote of this engine in an earlier life.
    """

    def __init__(
        self, config: EndpointConfig, *, source: str | None = None, previous: Previous | None = None
    ) -> None:
        self.config = config
        self.mapping: Mapping = mapping_of(config.engine)
        self.reachable = False
        self.attempts = 0
        self.last_scrape: Scrape | None = None
        self.problems: list[Problem] = []
        self.drift = DriftAlerts(config.instance)
        self._source = source
        self._boots = BootTracker(previous)
        self._failures = 0
        self._unwell = False
        self._row_state: tuple[object, ...] | None = None
        self._row_at_ms = 0
        self._ranks: list[int] = [0]
        self._role: Role | None = None
        self._known: set[tuple[int, str]] = set()
        """Readings (rank, name) that were known in this boot: late ones that are gone again are drift."""
        self._latencies_at_ms: int | None = None
        self._latency_problems: list[Problem] = []
        self._told: dict[tuple[int, str], Totals] = {}

    @property
    def boot(self) -> Boot | None:
        """The engine's boot, None before its first answer."""
        return None if self._boots.boot is UNSEEN else self._boots.boot

    def ask_health(self) -> bool:
        """Should the next scrape ask for health too?"""
        return not self.reachable or self._unwell or self.attempts % HEALTH_EVERY == 0

    @property
    def settled(self) -> bool:
        """False until it is clear whether the engine is there: an agent's first lost answer is a blip too."""
        return self.reachable or self._unwell or self._failures >= FAILURES_UNTIL_UNREACHABLE

    def reconfigure(self, config: EndpointConfig) -> None:
        """Take a changed description of the same engine (its URL and kind unchanged)."""
        self.config = config

    def take(self, scrape: Scrape) -> Seen:
        """Account for a scrape."""
        self.attempts += 1
        self.last_scrape = scrape
        failure, samples, latencies = scrape.failure, [], self._latencies_due(scrape.at_ms)
        if scrape.body is not None:
            try:
                samples = read_engine(
                    scrape.body,
                    self.mapping,
                    default_model=self.config.model_in_metrics,
                    latencies=latencies,
                )
            except Unreadable as unreadable:
                failure = Failure(unreadable.kind, f"{self.config.url}: {unreadable.sentence}")
        if failure is not None:
            return self._failed(failure, scrape)
        return self._answered(samples, scrape, latencies)

    def _latencies_due(self, now_ms: int) -> bool:
        if not self.mapping.latencies:
            return False
        last = self._latencies_at_ms
        # A quarter of a scrape's jitter must not make it every fifth instead of every fourth.
        return last is None or not 0 <= now_ms - last < LATENCIES_EVERY_MS - 100

    def _failed(self, failure: Failure, scrape: Scrape) -> Seen:
        self._failures += 1
        self._unwell = failure.kind == "unhealthy"
        if self._unwell or self._failures >= FAILURES_UNTIL_UNREACHABLE:
            self.reachable = False
        self.problems = []
        if self.reachable or not self.settled:
            return Seen(failure=failure)
        return Seen([self._telemetry(rank, scrape, None) for rank in self._ranks], failure=failure)

    def _answered(self, samples: list[EngineSample], scrape: Scrape, latencies: bool) -> Seen:
        self._failures, self._unwell, self.reachable = 0, False, True
        verdict = self._boots.observe(_evidence(samples, scrape), scrape.at_ms)
        if verdict.new:
            self._known, self._told = set(), {}
        chosen = choose(samples, self.config.model_in_metrics)
        self._ranks = [sample.rank for sample in chosen]
        roles = {sample.role for sample in chosen}
        self._role = roles.pop() if len(roles) == 1 else None
        if latencies:
            self._latencies_at_ms = scrape.at_ms
            self._latency_problems = [
                problem
                for sample in chosen
                for problem in sample.problems
                if problem.reading in self.mapping.latencies
            ]
        problems = [*(problem for sample in chosen for problem in sample.problems), *self._gone(chosen)]
        if not latencies:
            problems += self._latency_problems
        if verdict.fell:
            names = ", ".join(sorted({str(key[2]) for key in verdict.fell if isinstance(key, tuple)}))
            problems.append(Problem("counter_fell", f"Fell within a boot, so it was reset: {names}."))
        if other := self._other_role():
            problems.append(other)
        problems = list(dict.fromkeys(problems))
        self.problems = problems
        events = [self._telemetry(sample.rank, scrape, sample) for sample in chosen]
        whose = any(
            problem.kind in ("other_model", "ambiguous") and not problem.reading for problem in problems
        )
        alerts = [] if whose else self.drift.observe(problems, scrape.at_ms)  # nothing was read at all
        return Seen(events, problems, alerts, new_boot=verdict.new)

    def _gone(self, chosen: list[EngineSample]) -> list[Problem]:
        """Late readings that this boot told before and tells no more."""
        gone = []
        for sample in chosen:
            for reading in sample.not_yet:
                if (sample.rank, reading) in self._known:
                    sentence = (
                        f"{reading} is unknown: the engine told it earlier in this life, and no longer does."
                    )
                    gone.append(Problem("missing", sentence, reading))
            self._known.update((sample.rank, reading) for reading in sample.values)
        return gone

    def _other_role(self) -> Problem | None:
        told, said = self._role, self.config.roles
        if told is None or said is None or said == [told]:
            return None
        sentence = f"The engine says that its role is {told}, the list says {', '.join(said)}."
        return Problem("other_role", sentence)

    def _telemetry(self, rank: int, scrape: Scrape, sample: EngineSample | None) -> Any:
        changed: list[Totals] = []
        for totals in sample.latencies if sample is not None else ():
            if self._told.get((rank, totals.name)) != totals:
                self._told[rank, totals.name] = totals
                changed.append(totals)
        moment = Moment(scrape.at_ms, scrape.scrape_ms)
        return telemetry(self.config, self._boots.boot, rank, moment, sample, changed)

    def row_if_due(self, now_ms: int) -> EndpointRow | None:
        """The registry row where something changed or a heartbeat is due; its stamp is set when written."""
        if not self.settled:
            return None
        boot = self._boots.boot
        state = (self.config, boot, self.reachable, self._role)
        if state == self._row_state and now_ms - self._row_at_ms < HEARTBEAT_MS:
            return None
        self._row_state, self._row_at_ms = state, now_ms
        return EndpointRow(
            as_of_ms=now_ms,
            valid_for_ms=VALID_FOR_MS,
            epoch=0,
            version=0,
            instance=self.config.instance,
            boot=boot.name,
            boot_started_at_ms=boot.started_at_ms,
            engine=self.config.engine,
            url=self.config.url,
            region=self.config.region,
            pools=self.config.pools,
            roles=self.config.roles or [self._role or "both"],
            tokenizer=self.config.tokenizer,
            served_model=self.config.served_model,
            reachable=self.reachable,
            draining=self.config.draining,
            source=self._source,
            host=self.config.host,
            gpus=self.config.gpus,
        )


def _evidence(samples: list[EngineSample], scrape: Scrape) -> Evidence:
    first = samples[0]
    counters: dict[object, float] = {
        (sample.rank, sample.model, name): value
        for sample in samples
        for name, value in sample.known_counters().items()
    }
    return Evidence(
        first.process_started_at_ms, first.provenance.get(PROCESS_START), scrape.boot_token, counters
    )
