"""Every record once and in order, whatever Faust's consumer does around a rebalance."""

from __future__ import annotations

import faust
import structlog
from faust.types import TP

from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)

SEEK_AGAIN_MS = 500.0
"""What was fetched before a seek is still on its way; it must not make another one each."""


class Contiguous:
    """Admits a topic's records to an agent only as long as none is missing before them.

    Faust lets a topic's records flow while a rebalance still ends, and then empties the agents' queues: what
    was in them never comes again. So the agent's own tables say up to where they are complete
    (``taken_over``), and at a gap the consumer is sent back to there.
    """

    def __init__(self, app: faust.App, topic: str) -> None:
        self._app = app
        self._topic = topic
        self._sought: dict[int, tuple[int, float]] = {}
        self.next: dict[int, int] = {}
        """Each partition's next offset."""

    def taken_over(self, partition: int, next_offset: int) -> None:
        """The tables hold everything before this offset."""
        self.next[partition] = next_offset

    def lost(self) -> None:
        """A rebalance: forget the partitions."""
        self.next, self._sought = {}, {}

    async def admits(self, partition: int, offset: int) -> bool:
        """Whether this record may be taken now; one that comes again may. Moves ``next`` past it."""
        wanted = self.next.get(partition)
        if wanted is None or offset > wanted:
            begin = await self._begin(partition)
            # Not in the tables: where the group was set to, else the start. Or retention was faster than we.
            wanted = max(begin, self._committed(partition) if wanted is None else wanted)
            if offset > wanted:
                await self._send_back(partition, wanted, offset)
                self.next[partition] = wanted
                return False
        self.next[partition] = max(wanted, offset + 1)
        return True

    async def _begin(self, partition: int) -> int:
        tp = TP(self._topic, partition)
        return int((await self._app.consumer.earliest_offsets(tp))[tp])

    def _committed(self, partition: int) -> int:
        return self._app.consumer._committed_offset.get(TP(self._topic, partition)) or 0

    async def _send_back(self, partition: int, wanted: int, offset: int) -> None:
        before, at_ms = self._sought.get(partition, (-1, 0.0))
        if before == wanted and monotonic_ms() - at_ms < SEEK_AGAIN_MS:
            return
        self._sought[partition] = (wanted, monotonic_ms())
        log.warning("records_skipped", topic=self._topic, partition=partition, wanted=wanted, got=offset)
        await self._app.consumer.seek(TP(self._topic, partition), wanted)
