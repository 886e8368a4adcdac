"""What an agent's earlier life left on the log: its registry rows, and the alerts of its engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import structlog

from schemas.topics import ALERTS, ENDPOINTS
from sources.boots import Boot, Previous
from sources.drift import is_drift_alert
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)

RECENT_MS = 30_000
"""No engine restarts and loads a model within half a minute; one row in that time is still the same life."""
READ_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Left:
    """Rows by instance (structs of the fast path); ``complete`` where all of the topics was read."""

    rows: dict[str, Any] = field(default_factory=dict)
    alerts: list[Any] = field(default_factory=list)
    complete: bool = False

    def previous(self, instance: str, url: str, now_ms: int) -> Previous | None:
        """The boot last written of this engine; None where there is no row, or one of another address."""
        row = self.rows.get(instance)
        if row is None or row.url != url:
            return None
        recent = row.reachable and 0 <= now_ms - row.as_of_ms <= RECENT_MS
        return Previous(Boot(row.boot, row.boot_started_at_ms), recent)

    def alerts_of(self, instance: str) -> list[Any]:
        """The drift alerts of this instance that still fire."""
        return [row for row in self.alerts if row.state == "firing" and is_drift_alert(row, instance)]


async def read_left(bootstrap: str, agent_id: str, *, timeout_s: float = READ_TIMEOUT_S) -> Left:
    """Read both tables once. What can't be read in time is as if it were not there, and that is said."""
    reader = TableReader(bootstrap, [ENDPOINTS, ALERTS])
    await reader.start()
    try:
        await reader.wait_caught_up(timeout_s)
        complete = True
    except TimeoutError:
        log.warning("earlier_rows_not_read", waited_s=timeout_s)
        complete = False
    finally:
        await reader.stop()
    rows = {seen.row.instance: seen.row for seen in reader.view(ENDPOINTS).rows()}
    mine = {instance: row for instance, row in rows.items() if row.source == agent_id}
    return Left(mine, [seen.row for seen in reader.view(ALERTS).rows()], complete)
