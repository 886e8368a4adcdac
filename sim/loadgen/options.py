"""How the load generator behaves as a client: endpoint, retries, cancels, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Settings of one run; all times are ms of workload time (the run's `speed` shrinks them).

    `cancel_share`: fraction of intents whose client closes the stream after a seeded number of tokens.
    `max_retries`: retries per intent after an answer (429, 503, 5xx); connections that are refused or
    dropped are retried at the next router until the intent's deadline instead. `tenant_keys` maps a tenant
    to the bearer token that its requests carry.
    """

    model: str = "demo-8b"
    endpoint: Literal["chat", "completions"] = "chat"
    cancel_share: float = 0.02
    max_retries: int = 2
    backoff_base_ms: float = 50.0
    backoff_cap_ms: float = 2_000.0
    connect_timeout_ms: float = 2_000.0
    tenant_keys: Mapping[str, str] = field(default_factory=dict)
    progress_every_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.cancel_share <= 1:
            raise ValueError(f"The share of cancelled intents must lie in 0..1, not {self.cancel_share}.")
        if self.max_retries < 0:
            raise ValueError(f"The number of retries must be >= 0, not {self.max_retries}.")
        if not 0 < self.backoff_base_ms <= self.backoff_cap_ms:
            raise ValueError("The backoff must start above 0 ms and at or below its cap.")
        if not self.connect_timeout_ms > 0 or not self.progress_every_s > 0:
            raise ValueError("The connect timeout and the progress interval must be positive.")

    @property
    def path(self) -> str:
        """The URL path of the chosen endpoint."""
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"
