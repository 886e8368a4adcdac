"""Reads the ends of decisions from fleet.outcomes, for the partitions that stage two owns.

Not through Faust: a message each would cost more than all else of an outcome that comes alone in its record.
The position is the table's own, so there is no group and no commit: whoever owns a partition goes on where
the table says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.codec import Refused
from schemas.projections import ProjectedReader
from schemas.topics import OUTCOMES
from streams.record_batches import RecordBatch, fetch_batches
from transport.consumers import stop_consumer

log = structlog.get_logger(__name__)

WAIT_S = 0.2
AGAIN_S = 0.5
_IDS = ProjectedReader(OUTCOMES, ("decision_id",))


def ended_ids(batch: RecordBatch, first: int) -> Iterator[str]:
    """The decisions that the records of a batch from offset ``first`` on end.

    What can't be read is left out: the combiner, which reads the same records, puts it aside.
    """
    for record in batch.records:
        if record.offset >= first:
            try:
                events = _IDS.events(record.headers, record.value)
            except Refused:
                continue
            for event in events:
                yield event.decision_id


class OutcomeEnds:
    """Follows the partitions it is told, from the offsets it is told; ``take`` gets batch after batch."""

    def __init__(self, bootstrap: str, take: Callable[[RecordBatch], None]) -> None:
        self._bootstrap = bootstrap
        self._take = take
        self._starts: dict[TopicPartition, int] = {}
        self._turn = 0

    def follow(self, starts: Mapping[int, int]) -> None:
        """From now on these partitions, each from this offset; none for no more."""
        self._starts = {TopicPartition(OUTCOMES.name, number): offset for number, offset in starts.items()}
        self._turn += 1

    async def run(self) -> None:
        """Read until cancelled; broker trouble is waited out."""
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=int(WAIT_S * 1000),
                request_timeout_ms=20_000,
            )
            try:
                await consumer.start()
                await self._read(consumer)
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("outcomes_not_read", error=repr(error), again_in_s=AGAIN_S)
            finally:
                await stop_consumer(consumer)
            await asyncio.sleep(AGAIN_S)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        turn = -1
        while True:
            if turn != self._turn:
                turn = self._turn
                consumer.assign(list(self._starts))
                for tp, offset in self._starts.items():
                    consumer.seek(tp, offset)
            if not self._starts:
                await asyncio.sleep(WAIT_S)
                continue
            for batch in await fetch_batches(consumer, WAIT_S):
                if turn != self._turn:
                    break  # read for somebody who has lost the partition, or goes on elsewhere
                self._take(batch)
                self._starts[batch.tp] = batch.next_offset
                await asyncio.sleep(0)
