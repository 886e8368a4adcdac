"""What a streams worker is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from minds.closing import ClosingTerms


@dataclass(frozen=True, slots=True)
class StreamsOptions:
    """One worker's settings. ``worker_id`` must be stable over restarts and unique in the fleet: it is the
    static member id of both consumer groups, so that a restarted worker gets its partitions back at once.
    """

    bootstrap: str
    worker_id: str
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    app_id: str = "tokenfleet"
    session_ms: float = 6_000.0
    """How long a worker that is gone keeps its partitions from others: less than its requests may take, which
    is 20 s, and within the broker's own bounds."""
    flush_ms: float = 250.0
    publish_ms: float = 3.0
    """How long a publication waits for more: the rollups of an interval come together."""
    heartbeat_ms: float = 2_500.0
    """Each row again at this interval: shorter than its own validity, so that a steady fleet stays fresh."""
    quiet_heartbeat_ms: float = 25_000.0
    """The same for rows that only news can change; they are valid for longer."""
    members_ms: float = 500.0
    """How old a region's sums over its instances may be."""
    grant_ms: float = 1_000.0
    store_ms: float = 5_000.0
    """Changelog writes and commits of stage two."""
    stall_ms: float = 10_000.0
    """How long a part may have work and do none; `/healthz` is red within 15 s, its periods included."""
    settle_ms: float = 3_000.0
    """After a takeover the closer waits so long before it closes anything."""
    wrong_clock_ahead_ms: float = 5 * 60_000.0
    wrong_clock_behind_ms: float = 86_400_000.0
    broker_timeout_s: float = 15.0
    """How long to wait for a broker at the start."""
    dead_letter_run_limit: int = 1000
    closing: ClosingTerms = field(default_factory=ClosingTerms)

    close_decisions: bool = True
    """Whether this worker closes lost decisions too; the tables do not need it."""

    @property
    def heartbeat_interval_ms(self) -> float:
        """How often a consumer tells its group that it lives."""
        return self.session_ms / 4.0

    @property
    def combiner_group(self) -> str:
        """The combiner's consumer group; Faust's own is ``app_id``."""
        return f"{self.app_id}-combiner"
