"""A router's settings."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """Settings of one router process; times in milliseconds unless the name says otherwise.

    ``ack_wait_ms`` bounds the wait for the broker before an answer begins; ``idle_token_ms`` ends a stream
    that brings no token; ``sample_ratio`` of the decisions is logged with its full input;
    ``endpoint_horizon_ms``: an endpoint that its source has not mentioned for so long is not used.
    """

    router: str
    entry_region: str
    host: str = "127.0.0.1"
    port: int = 8080
    max_tries: int = 3
    ack_wait_ms: float = 250.0
    idle_token_ms: float = 30_000.0
    connect_timeout_ms: float = 2_000.0
    heartbeat_ms: float = 1_000.0
    heartbeat_min_gap_ms: float = 200.0
    drain_s: float = 10.0
    queue_limit: int = 256
    sample_ratio: float = 0.01
    endpoint_horizon_ms: float = 300_000.0
    silent_after_ms: float = 10_000.0
    max_body_bytes: int = 32 * MIB
