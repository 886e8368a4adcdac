"""Envelopes and rows out: batched per topic, idempotent, bounded while the broker is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from minds.rows import tombstone_headers
from schemas.base import Event, Row
from schemas.codec import envelope_headers, headers_for, to_json
from schemas.envelopes import MAX_EVENTS, Envelope
from schemas.fastpath import encode, struct_of
from schemas.operations import CLAIM_KEY, Claim
from schemas.topics import MAX_RECORD_BYTES, Topic
from transport.clock import now_ms
from transport.errors import BrokerUnavailable
from transport.partitioning import partition_of

log = structlog.get_logger(__name__)


async def start_producer(bootstrap: str, *, linger_ms: int = 5, timeout_s: float = 15.0) -> AIOKafkaProducer:
    """An idempotent producer once the broker answers; raises BrokerUnavailable after ``timeout_s``."""
    loop = asyncio.get_running_loop()
    deadline, detail = loop.time() + timeout_s, ""
    while True:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=linger_ms,
            max_batch_size=256 * 1024,
            max_request_size=MAX_RECORD_BYTES,
            request_timeout_ms=30_000,
            metadata_max_age_ms=60_000,
        )
        try:
            await asyncio.wait_for(producer.start(), max(0.1, deadline - loop.time()))
            return producer
        except (KafkaError, OSError, TimeoutError) as error:
            detail = type(error).__name__
            await producer.stop()
        if loop.time() + 0.3 >= deadline:
            raise BrokerUnavailable(bootstrap, timeout_s, detail)
        await asyncio.sleep(0.3)


_Waiting = tuple[Event | msgspec.Struct, asyncio.Future[None] | None]
"""An event, and who waits for it to be with the broker."""


@dataclass(slots=True)
class _Outbox:
    """What waits to be sent to one topic."""

    topic: Topic
    waiting: deque[_Waiting] = field(default_factory=deque)
    seq: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class EventProducer:
    """Sends raw events in envelopes with ``(producer, boot, seq)``, in order, each exactly once in the log.

    ``emit`` never blocks: events wait in a buffer of at most ``max_waiting`` a topic. While the broker is
    away the buffer fills, ``healthy`` turns False, and beyond the bound the oldest unawaited events are
    dropped and counted. An envelope that could not be sent is tried again under the same ``seq``.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        *,
        producer_id: str,
        boot: str,
        linger_ms: float = 10.0,
        max_waiting: int = 50_000,
        on_drop: Callable[[Topic, int], None] | None = None,
    ) -> None:
        self._producer = producer
        self.producer_id = producer_id
        self.boot = boot
        self._linger_s = linger_ms / 1000.0
        self._max_waiting = max_waiting
        self._on_drop = on_drop
        self._outboxes: dict[str, _Outbox] = {}
        self._failing_since_ms: int | None = None
        self._closing = False
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """Events not yet acknowledged by the broker's side of ``send`` (the buffer)."""
        return sum(len(box.waiting) for box in self._outboxes.values())

    @property
    def healthy(self) -> bool:
        """False from the first failed send until one succeeds."""
        return self._failing_since_ms is None

    def emit(self, topic: Topic, event: Event | msgspec.Struct) -> None:
        """Queue an event (or its struct of schemas.fastpath); it goes out within the linger time."""
        self._put(topic, event, None)

    async def emit_acked(self, topic: Topic, event: Event) -> None:
        """Queue an event and wait until the broker has it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(topic, event, future)
        await future

    def _put(self, topic: Topic, event: Event | msgspec.Struct, future: asyncio.Future[None] | None) -> None:
        if self._closing:
            raise RuntimeError("This producer is closing; no more events can be emitted.")
        box = self._outboxes.get(topic.name)
        if box is None:
            box = self._outboxes[topic.name] = _Outbox(topic)
            box.task = asyncio.create_task(self._drain(box), name=f"outbox-{topic.name}")
        if len(box.waiting) >= self._max_waiting:
            _, dropped = box.waiting.popleft()
            if dropped is not None and not dropped.done():
                dropped.set_exception(BrokerUnavailable(self.producer_id, 0.0, "the event buffer is full"))
            self.dropped += 1
            if self._on_drop is not None:
                self._on_drop(topic, 1)
        box.waiting.append((event, future))
        box.wake.set()

    async def _drain(self, box: _Outbox) -> None:
        while True:
            await box.wake.wait()
            if not self._closing and self._linger_s:
                await asyncio.sleep(self._linger_s)
            box.wake.clear()
            # What comes while these are being sent lingers too, else each send would carry the next few only.
            left = len(box.waiting)
            while left > 0 or (self._closing and box.waiting):
                size = min(len(box.waiting), MAX_EVENTS // 2)
                batch = [box.waiting.popleft() for _ in range(size)]
                left -= size
                await self._send(box, batch)
            if self._closing:
                return

    async def _send(self, box: _Outbox, batch: list[_Waiting]) -> None:
        model = box.topic.model
        value = self._envelope(box, [event for event, _ in batch])
        headers = envelope_headers(model)  # type: ignore[arg-type]
        while True:
            try:
                await self._producer.send_and_wait(
                    box.topic.name, value, key=self.producer_id.encode(), headers=headers
                )
                break
            except (KafkaError, OSError) as error:
                if self._failing_since_ms is None:
                    self._failing_since_ms = now_ms()
                    log.warning("events_not_sent", topic=box.topic.name, error=type(error).__name__)
                await asyncio.sleep(0.5)
        if self._failing_since_ms is not None:
            log.info("events_sent_again", topic=box.topic.name, after_ms=now_ms() - self._failing_since_ms)
            self._failing_since_ms = None
        box.seq += 1
        for _, future in batch:
            if future is not None and not future.done():
                future.set_result(None)

    def _envelope(self, box: _Outbox, events: list[Any]) -> bytes:
        """The envelope as JSON; events that are structs of the fast path were checked by who made them."""
        model: Any = Envelope[box.topic.model]  # type: ignore[name-defined]
        fields = {
            "producer": self.producer_id,
            "boot": self.boot,
            "seq": box.seq,
            "sent_at_ms": now_ms(),
        }
        if all(isinstance(event, msgspec.Struct) for event in events):
            return encode(struct_of(model, False)(**fields, events=events))
        checked = [
            box.topic.model.model_validate(msgspec.to_builtins(event))
            if isinstance(event, msgspec.Struct)
            else event
            for event in events
        ]
        return to_json(model(**fields, events=checked))

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """Send what waits, within ``timeout_s``; what could not be sent is counted as dropped."""
        self._closing = True
        tasks = [box.task for box in self._outboxes.values() if box.task is not None]
        for box in self._outboxes.values():
            box.wake.set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if left := self.waiting:
            self.dropped += left
            log.error("events_dropped_at_close", events=left)


class RowProducer:
    """Writes rows, tombstones and claims to compacted topics, each to the partition of its partition key."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def claim(self, topic: Topic, partition: int, owner: str) -> int:
        """Take a partition over: writes a claim record and returns its offset, the owner's epoch."""
        claim = Claim(owner=owner, at_ms=now_ms())
        sent = await self._producer.send_and_wait(
            topic.name,
            to_json(claim),
            key=CLAIM_KEY.encode(),
            partition=partition,
            headers=headers_for(Claim),
        )
        return int(sent.offset)

    async def put(self, topic: Topic, row: Row, *, partition_key: str) -> asyncio.Future[object]:
        """Queue a row; the returned future is done when the broker has it."""
        future: asyncio.Future[object] = await self._producer.send(
            topic.name,
            to_json(row),
            key=row.key().encode(),
            partition=partition_of(partition_key, topic.partitions),
            headers=headers_for(row),
        )
        return future

    async def remove(
        self, topic: Topic, key: str, *, partition_key: str, epoch: int, version: int
    ) -> asyncio.Future[object]:
        """Queue a tombstone for this key."""
        future: asyncio.Future[object] = await self._producer.send(
            topic.name,
            None,
            key=key.encode(),
            partition=partition_of(partition_key, topic.partitions),
            headers=tombstone_headers(epoch, version),
        )
        return future

    async def flush(self) -> None:
        """Wait until all queued rows are with the broker."""
        await self._producer.flush()
