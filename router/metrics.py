"""The router's Prometheus metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
_DECISION_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 0.1)


class RouterMetrics:
    """One object a router process. Classes, causes and rules are bounded sets, so labels are too."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.attempts = Counter(
            "tokenfleet_router_attempts", "Attempts by end.", ["service_class", "cause"], registry=r
        )
        self.refusals = Counter(
            "tokenfleet_router_refusals",
            "Requests refused, by status and rule.",
            ["status", "rule"],
            registry=r,
        )
        self.in_flight = Gauge("tokenfleet_router_in_flight_requests", "Requests being served.", registry=r)
        self.queued = Gauge("tokenfleet_router_queued_requests", "Requests waiting for headroom.", registry=r)
        self.output_tokens = Counter(
            "tokenfleet_router_output_tokens", "Output tokens passed on.", ["service_class"], registry=r
        )
        self.decision_seconds = Histogram(
            "tokenfleet_router_decision_seconds",
            "Time to choose region and instance, waiting for headroom not included.",
            buckets=_DECISION_SECONDS,
            registry=r,
        )
        self.ttft_seconds = Histogram(
            "tokenfleet_router_ttft_seconds",
            "From the intent's start to its first token.",
            ["service_class"],
            buckets=_SECONDS,
            registry=r,
        )
        self.queue_seconds = Histogram(
            "tokenfleet_router_queue_seconds",
            "Wait for headroom before dispatch.",
            ["service_class"],
            buckets=_SECONDS,
            registry=r,
        )
        self.ack_timeouts = Counter(
            "tokenfleet_router_decision_ack_timeouts",
            "Answers begun before the broker had the decision.",
            registry=r,
        )
        self.events_dropped = Counter(
            "tokenfleet_router_events_dropped", "Events lost from a full buffer.", ["topic"], registry=r
        )
        self.rows_refused = Counter(
            "tokenfleet_router_rows_refused", "Table rows that could not be read.", ["topic"], registry=r
        )
        self.degraded = Gauge("tokenfleet_router_degraded", "1 while the broker is away.", registry=r)
