"""Where topics end, and whether stage two keeps up: consumers can stall without any error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.topics import DECISIONS, OUTCOMES, ROLLUPS
from streams.faust_tables import PARTITIONS, Settler
from streams.health import Health
from streams.options import StreamsOptions
from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)

Place = tuple[str, int]
"""Topic and partition."""
READS = {"capacity": (ROLLUPS.name,), "closer": (DECISIONS.name, OUTCOMES.name)}
EVERY_S = 3.0


class OffsetProbe:
    """Asks the broker for offsets, outside of every group."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._consumer: AIOKafkaConsumer | None = None
        self._turn = asyncio.Lock()

    async def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The next offset of each place that holds any record. Raises KafkaError while the broker is away."""
        tps = [TopicPartition(topic, partition) for topic, partition in places]
        if not tps:
            return {}
        async with self._turn:
            if self._consumer is None:
                consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, request_timeout_ms=10_000)
                try:
                    await consumer.start()
                except BaseException:
                    await consumer.stop()
                    raise
                self._consumer = consumer
            begins = await self._consumer.beginning_offsets(tps)
            ends = await self._consumer.end_offsets(tps)
        return {(tp.topic, tp.partition): end for tp, end in ends.items() if end > begins[tp]}

    async def stop(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            await self._consumer.stop()


class LagWatch:
    """Turns the health red when records arrive and none is settled for the stall time."""

    def __init__(
        self, probe: OffsetProbe, settlers: dict[str, Settler], options: StreamsOptions, health: Health
    ) -> None:
        self._probe = probe
        self._settlers = settlers
        self._stall_ms = options.stall_ms
        self._ends: dict[Place, int] = {}
        self._waiting_since_ms: dict[Place, tuple[int, float]] = {}
        for name in settlers:
            health.add(f"{name}_lag", live=lambda name=name: self._stalled(name))  # type: ignore[misc]

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        places = [(topic, p) for topics in READS.values() for topic in topics for p in range(PARTITIONS)]
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                ends = await self._probe.ends(places)
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("offsets_unknown", error=repr(error))
                continue
            self._look(ends)

    def _look(self, ends: dict[Place, int]) -> None:
        for name, settler in self._settlers.items():
            for place, end in ends.items():
                if place[0] not in READS[name]:
                    continue
                grown = end > self._ends.setdefault(place, end)
                settled = settler.settled.get(place)
                # Another worker's partition: nothing of it is ever settled here.
                if settled is None or not grown or settled >= end - 1:
                    self._waiting_since_ms.pop(place, None)
                    continue
                held = self._waiting_since_ms.get(place)
                if held is None or held[0] != settled:
                    self._waiting_since_ms[place] = (settled, monotonic_ms())

    def _stalled(self, name: str) -> str | None:
        for (topic, partition), (settled, since_ms) in self._waiting_since_ms.items():
            silent_ms = monotonic_ms() - since_ms
            if topic in READS[name] and silent_ms > self._stall_ms:
                return (
                    f"{topic}:{partition} has records, but nothing past offset {settled} was settled for "
                    f"{silent_ms / 1000:.0f} s."
                )
        return None
