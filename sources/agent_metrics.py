"""The agent's own Prometheus metrics, in a registry of their own."""

from __future__ import annotations

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
        self._kinds: dict[str, set[str]] = {}

    def set_problems(self, instance: str, counts: dict[str, int]) -> None:
        """The problems of the last scrape; kinds that are over go to 0."""
        known = self._kinds.setdefault(instance, set())
        known |= counts.keys()
        for kind in known:
            self.problems.labels(instance, kind).set(counts.get(kind, 0))

    def forget(self, instance: str) -> None:
        """Drop the gauges of an instance that is gone."""
        self.reachable.remove(instance)
        for kind in self._kinds.pop(instance, set()):
            self.problems.remove(instance, kind)

    def text(self) -> bytes:
        """The exposition of all of them."""
        return generate_latest(self.registry)
