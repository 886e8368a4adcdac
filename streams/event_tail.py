"""Following raw topics of which only the newest word counts: links and GPUs.

Every worker reads them whole, without a group and without a table: what a probe or a sample says holds for
seconds, so a worker that starts needs minutes of the past and nothing else, and a rebalance changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.codec import Refused, decode_events
from schemas.topics import Topic
from transport.clock import monotonic_ms, now_ms
from transport.consumers import stop_consumer
from transport.log_reader import partitions_of

log = structlog.get_logger(__name__)

_TELL_EVERY_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Followed:
    """A topic, how much of its past says something now, and what takes its events.

    ``take`` returns a sentence about what in an event can't be true, or None.
    """

    topic: Topic
    look_back_ms: float
    take: Callable[[Any], str | None]


class EventTail:
    """Hands the events of some raw topics on, from a while ago until stopped.

    What can't be used is counted in ``refused`` and told in the log at most once a minute a topic; it never
    stops the rest. An event whose clock is more than ``ahead_ms`` before its record's is such a thing: as the
    newest word it would silence all that follow.
    """

    def __init__(self, bootstrap: str, followed: Sequence[Followed], *, ahead_ms: float) -> None:
        self._bootstrap = bootstrap
        self._followed = {each.topic.name: each for each in followed}
        self._ahead_ms = ahead_ms
        self._caught_up = False
        self._told_ms: dict[str, float] = {}
        self.refused = 0

    @property
    def caught_up(self) -> bool:
        """True once all that was there at the start has been handed on; it stays so."""
        return self._caught_up

    async def run(self) -> None:
        """Follow until cancelled; broker trouble is waited out."""
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                fetch_max_wait_ms=500,
                request_timeout_ms=10_000,
            )
            try:
                await consumer.start()
                await self._follow(consumer)
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("events_not_followed", error=type(error).__name__, again_in_s=1)
            finally:
                await stop_consumer(consumer)
            await asyncio.sleep(1.0)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        wanted: dict[TopicPartition, int] = {}
        for name, each in self._followed.items():
            since_ms = now_ms() - int(each.look_back_ms)
            wanted |= dict.fromkeys(await partitions_of(consumer, name), since_ms)
        consumer.assign(list(wanted))
        ends = await consumer.end_offsets(list(wanted))
        found = await consumer.offsets_for_times(wanted)
        for tp in wanted:
            at = found.get(tp)
            consumer.seek(tp, ends[tp] if at is None else at.offset)
        behind = {tp for tp, end in ends.items() if await consumer.position(tp) < end}
        while True:
            self._caught_up = self._caught_up or not behind
            batches = await consumer.getmany(timeout_ms=500, max_records=2_000)
            for tp, records in batches.items():
                for record in records:
                    self._take(self._followed[tp.topic], record)
            if behind:
                behind = {tp for tp in behind if await consumer.position(tp) < ends[tp]}
            await asyncio.sleep(0)

    def _take(self, followed: Followed, record: Any) -> None:
        try:
            events = decode_events(followed.topic, tuple(record.headers), record.value).events
        except Refused as refused:
            self._refuse(followed.topic, record, refused.reason)
            return
        for event in events:
            ahead_ms = event.at_ms - record.timestamp
            if ahead_ms > self._ahead_ms:
                wrong: str | None = f"An event is {ahead_ms / 1000:.0f} s ahead of its record's time."
            else:
                wrong = followed.take(event)
            if wrong is not None:
                self._refuse(followed.topic, record, wrong)

    def _refuse(self, topic: Topic, record: Any, reason: str) -> None:
        self.refused += 1
        if monotonic_ms() - self._told_ms.get(topic.name, float("-inf")) >= _TELL_EVERY_MS:
            self._told_ms[topic.name] = monotonic_ms()
            log.warning(
                "event_refused",
                topic=topic.name,
                partition=record.partition,
                offset=record.offset,
                reason=reason,
                refused=self.refused,
            )
