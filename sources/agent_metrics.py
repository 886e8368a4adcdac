"""The agent's own Prometheus metrics, in a registry of their own."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class AgentMetrics:
    """Counters and gauges of one agent process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.scrapes = Counter(
            "tokenfleet_source_scrapes_total",
            "Scrapes by instance and result (ok, or the kind of failure).",
            ["instance", "result"],
            registry=self.registry,
        )
        self.scrape_seconds = Histogram(
            "tokenfleet_source_scrape_seconds",
            "Time of a scrape, request to last byte.",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
            registry=self.registry,
        )
        self.reachable = Gauge(
            "tokenfleet_source_endpoint_reachable",
            "1 where the engine answers and says that it is well.",
            ["instance"],
            registry=self.registry,
        )
        self.problems = Gauge(
            "tokenfleet_source_problems",
            "Problems of the last scrape by kind; missing and wrong_type mean that the mapping has drifted.",
            ["instance", "kind"],
            registry=self.registry,
        )
        self.boots = Counter(
            "tokenfleet_source_boots_total",
            "Boots seen, the first one included.",
            ["instance"],
            registry=self.registry,
        )
        self.rows_written = Gauge(
            "tokenfleet_source_rows_written", "Registry rows and tombstones written.", registry=self.registry
        )
        self.events_waiting = Gauge(
            "tokenfleet_source_events_waiting", "Events not yet with the broker.", registry=self.registry
        )
        self.events_dropped = Gauge(
            "tokenfleet_source_events_dropped", "Events dropped: the buffer was full.", registry=self.registry
        )
        self.config_ok = Gauge(
            "tokenfleet_source_config_ok",
            "0 while the discovery file is broken and the last good one is in use.",
            registry=self.registry,
        )
        self.rollups_held = Gauge(
            "tokenfleet_source_rollups_held",
            "Telemetry rolled up by the second while the broker is away.",
            registry=self.registry,
        )
        self.drift_alerts = Gauge(
            "tokenfleet_source_drift_alerts", "Drift alerts that fire.", registry=self.registry
        )
        self.discovery_errors = Gauge(
            "tokenfleet_source_discovery_errors",
            "Lists of engines that are not current; the last good ones are in use.",
            registry=self.registry,
        )
        self._instances: dict[str, InstanceMetrics] = {}

    def of(self, instance: str) -> InstanceMetrics:
        """The metrics of one instance."""
        if instance not in self._instances:
            self._instances[instance] = InstanceMetrics(self, instance)
        return self._instances[instance]

    def forget(self, instance: str) -> None:
        """Drop the gauges of an instance that is gone."""
        if known := self._instances.pop(instance, None):
            known.forget()

    def text(self) -> bytes:
        """The exposition of all of them."""
        return generate_latest(self.registry)


class InstanceMetrics:
    """One instance's children of the agent's metrics, looked up once: a scrape touches them all."""

    def __init__(self, metrics: AgentMetrics, instance: str) -> None:
        self._metrics = metrics
        self._instance = instance
        self._scrapes: dict[str, Counter] = {}
        self._problems: dict[str, Gauge] = {}
        self._counts: dict[str, int] = {}
        self._reachable = metrics.reachable.labels(instance)
        self._boots = metrics.boots.labels(instance)

    def scraped(self, result: str) -> None:
        """Count a scrape: ok, or the kind of failure."""
        if result not in self._scrapes:
            self._scrapes[result] = self._metrics.scrapes.labels(self._instance, result)
        self._scrapes[result].inc()

    def reachable(self, reachable: bool) -> None:
        """Whether the engine answers and is well."""
        self._reachable.set(reachable)

    def booted(self) -> None:
        """Count a boot."""
        self._boots.inc()

    def problems(self, counts: Mapping[str, int]) -> None:
        """The problems of the last scrape; kinds that are over go to 0."""
        if counts == self._counts:
            return
        for kind in counts:
            if kind not in self._problems:
                self._problems[kind] = self._metrics.problems.labels(self._instance, kind)
        for kind, gauge in self._problems.items():
            gauge.set(counts.get(kind, 0))
        self._counts = dict(counts)

    def forget(self) -> None:
        """Drop the gauges; counters stay, as totals must."""
        self._metrics.reachable.remove(self._instance)
        for kind in self._problems:
            self._metrics.problems.remove(self._instance, kind)
