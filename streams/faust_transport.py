"""Faust's Kafka consumer, but that after a rebalance it really goes back to what is committed.

Faust throws away what it has fetched when a rebalance stops its flow, and then seeks to the committed
offsets. Two things go wrong there, and records never come again, without a word:

- the seek that it uses leaves a partition where it is if the committed offset is 0, if there is none yet, or
  if the group's coordinator has just come back and does not say;
- it remembers the last offset that it has read, and drops what is below. A record that was under way during
  the seek sets that again, and all that the seek was for is dropped as old. The same memory takes a gap for
  acknowledged.

Here the seek is done to every partition, and nothing is remembered: who reads must bear records again
(``streams.contiguous``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.drivers import aiokafka as driver

from transport.consumers import committed_offsets

_CHANGELOG = "-changelog"
"""How Faust names them; where to read those from is the recovery's own matter."""


async def seek_to_committed(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """Seek each assigned partition to its committed offset, at least to its start; returns where to.

    Raises KafkaError where the coordinator does not say.
    """
    tps = [tp for tp in consumer.assignment() if not tp.topic.endswith(_CHANGELOG)]
    if not tps:
        return {}
    committed = await committed_offsets(consumer, tps)
    begins = await consumer.beginning_offsets(tps)
    found = {tp: max(begins[tp], at or 0) for tp, at in committed.items()}
    for tp, at in found.items():
        consumer.seek(tp, at)
    return found


class _Thread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    async def seek_to_committed(self) -> Mapping[Any, int]:
        found: Mapping[Any, int] = await self.call_thread(seek_to_committed, self._ensure_consumer())
        return found


class _NothingRead(dict[Any, Any]):
    """Faust's memory of the last offset read by partition, always empty to who asks for one."""

    def __getitem__(self, tp: Any) -> None:
        return None


class _Consumer(driver.Consumer):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _NothingRead()

    def _new_consumer_thread(self) -> _Thread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)


class _Transport(driver.Transport):  # type: ignore[misc]
    Consumer = _Consumer


def use(app: faust.App) -> None:
    """Make the app consume this way; before it is started."""
    app.transport = _Transport(app.conf.broker_consumer, app)
