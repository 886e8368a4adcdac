"""What an agent knows of one engine: from scrapes to telemetry, and to the row that registers it.

Pure apart from what it is told: ``now_ms`` is an argument, scrapes come in, events and rows go out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.endpoints import EndpointRow
from schemas.readings import EngineCounters, EngineGauges
from schemas.telemetry import Telemetry
from sources.boots import BootTracker, Evidence
from sources.discovery import EndpointConfig
from sources.engines.mapping import PROCESS_START, Mapping, mapping_of
from sources.engines.reader import EngineSample, choose, read_engine
from sources.problems import Problem, Unreadable
from sources.scraper import Failure, Scrape

FAILURES_UNTIL_UNREACHABLE = 2
"""One lost answer is a blip: the last readings age by themselves. Two in a row are an engine that is away."""
HEALTH_EVERY = 4
"""Health is asked with every fourth scrape (each second at 4 Hz), and with each one while it is not well."""
HEARTBEAT_MS = 5_000
VALID_FOR_MS = 15_000.0


@dataclass(slots=True)
class Seen:
    """What one scrape brought: events to send, and what is worth telling people."""

    telemetry: list[Telemetry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failure: Failure | None = None
    new_boot: bool = False


class EndpointWatch:
    """Follows one engine. Until its first answer it is unreachable, and its boot is the one called unseen."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.mapping: Mapping = mapping_of(config.engine)
        self.reachable = False
        self.attempts = 0
        self.last_scrape: Scrape | None = None
        self.problems: list[Problem] = []
        self._boots = BootTracker()
        self._failures = 0
        self._unwell = False
        self._row_state: tuple[object, ...] | None = None
        self._row_at_ms = 0
        self._ranks: list[int] = [0]

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
        failure, samples = scrape.failure, []
        if scrape.body is not None:
            try:
                samples = read_engine(scrape.body, self.mapping, default_model=self.config.served_model)
            except Unreadable as unreadable:
                failure = Failure(unreadable.kind, f"{self.config.url}: {unreadable.sentence}")
        return self._failed(failure, scrape) if failure is not None else self._answered(samples, scrape)

    def _failed(self, failure: Failure, scrape: Scrape) -> Seen:
        self._failures += 1
        self._unwell = failure.kind == "unhealthy"
        if self._unwell or self._failures >= FAILURES_UNTIL_UNREACHABLE:
            self.reachable = False
        self.problems = []
        if self.reachable or not self.settled:
            return Seen(failure=failure)
        return Seen([self._telemetry(rank, scrape, None) for rank in self._ranks], failure=failure)

    def _answered(self, samples: list[EngineSample], scrape: Scrape) -> Seen:
        self._failures, self._unwell, self.reachable = 0, False, True
        verdict = self._boots.observe(_evidence(samples, scrape), scrape.at_ms)
        chosen = choose(samples, self.config.served_model)
        self._ranks = [sample.rank for sample in chosen]
        problems = list(dict.fromkeys(problem for sample in chosen for problem in sample.problems))
        if verdict.fell:
            names = ", ".join(sorted({str(key[2]) for key in verdict.fell if isinstance(key, tuple)}))
            problems.append(Problem("counter_fell", f"Fell within a boot, so it was reset: {names}."))
        self.problems = problems
        events = [self._telemetry(sample.rank, scrape, sample) for sample in chosen]
        return Seen(events, problems, new_boot=verdict.new)

    def _telemetry(self, rank: int, scrape: Scrape, sample: EngineSample | None) -> Telemetry:
        boot = self._boots.boot
        return Telemetry(
            instance=self.config.instance,
            boot=boot.name,
            boot_started_at_ms=boot.started_at_ms,
            engine=self.config.engine,
            rank=rank,
            region=self.config.region,
            pools=self.config.pools,
            at_ms=scrape.at_ms,
            reachable=sample is not None,
            scrape_ms=scrape.scrape_ms,
            gauges=EngineGauges() if sample is None else sample.gauges,
            counters=EngineCounters() if sample is None else sample.counters,
        )

    def row_if_due(self, now_ms: int) -> EndpointRow | None:
        """The registry row where something changed or a heartbeat is due; its stamp is set when written."""
        if not self.settled:
            return None
        boot = self._boots.boot
        state = (self.config, boot, self.reachable)
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
            roles=self.config.roles,
            tokenizer=self.config.tokenizer,
            served_model=self.config.served_model,
            reachable=self.reachable,
            draining=self.config.draining,
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
