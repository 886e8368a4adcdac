"""The sink's Prometheus metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class SinkMetrics:
    """All metrics of one sink process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows = Counter("tokenfleet_sink_rows", "Rows stored.", ["table"], registry=self.registry)
        self.skipped = Counter(
            "tokenfleet_sink_rows_skipped",
            "Rows read again that were stored already.",
            ["table"],
            registry=self.registry,
        )
        self.inserts = Histogram(
            "tokenfleet_sink_insert_seconds", "Duration of inserts.", ["table"], registry=self.registry
        )
        self.retries = Counter(
            "tokenfleet_sink_retries", "Steps tried again.", ["step"], registry=self.registry
        )
        self.dead_letters = Counter(
            "tokenfleet_sink_dead_letters", "Records put aside.", ["topic", "kind"], registry=self.registry
        )
        self.lag = Gauge(
            "tokenfleet_sink_lag_records", "Records not read yet.", ["topic"], registry=self.registry
        )
        self.expired = Counter(
            "tokenfleet_sink_records_expired",
            "Records that the log had dropped before they were stored.",
            ["topic"],
            registry=self.registry,
        )
        self.queries = Counter(
            "tokenfleet_sink_queries", "Queries answered.", ["result"], registry=self.registry
        )
        self.query_seconds = Histogram(
            "tokenfleet_sink_query_seconds", "Duration of queries.", registry=self.registry
        )
