"""Where topics end, and whether this worker's consumers keep up: they can stall without any error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.topics import DECISIONS, OUTCOMES, ROLLUPS
from streams.faust_tables import Ownership, Settler
from streams.health import Health
from streams.options import StreamsOptions
from transport.clock import monotonic_ms
from transport.consumers import stop_consumer

log = structlog.get_logger(__name__)

Place = tuple[str, int]
"""Topic and partition."""
READS = {"capacity": (ROLLUPS.name,), "closer": (DECISIONS.name, OUTCOMES.name)}
COMBINER = "combiner"
EVERY_S = 2.0
PROBE_TIMEOUT_S = 5.0
UNRECOVERED_MS = 60_000.0
"""Twice what the recovery of the largest table may take; a restart before that would only begin it anew."""


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
                    await stop_consumer(consumer)
                    raise
                self._consumer = consumer
            begins = await self._consumer.beginning_offsets(tps)
            ends = await self._consumer.end_offsets(tps)
        return {(tp.topic, tp.partition): end for tp, end in ends.items() if end > begins[tp]}

    async def stop(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            await stop_consumer(self._consumer)


class Combining(Protocol):
    """What is watched of stage one."""

    @property
    def committed(self) -> Mapping[Place, int] | None:
        """The next offset to commit of each source partition it holds; None while it may not combine."""


class Following(Protocol):
    """What is watched of a part of stage two."""

    settler: Settler
    ownership: Ownership


class LagWatch:
    """Turns the health red when a part has records but gets no further for the stall time.

    It compares what the *broker* says that there is with what is committed or settled here: a consumer whose
    fetches have stopped knows of nothing new. From the last step forward to red it takes at most the stall
    time and two of its own periods.
    """

    def __init__(
        self,
        probe: OffsetProbe,
        combiner: Combining,
        followers: Mapping[str, Following],
        options: StreamsOptions,
        health: Health,
    ) -> None:
        self._probe = probe
        self._combiner = combiner
        self._followers = followers
        self._stall_ms = options.stall_ms
        self._waiting: dict[tuple[str, Place], tuple[int, float]] = {}
        self._taken_over: dict[tuple[str, Place], tuple[int, int]] = {}
        self._not_owning_since_ms: dict[str, float] = {}
        self._asked_ms = monotonic_ms()
        for name in (COMBINER, *followers):
            health.add(f"{name}_lag", live=lambda name=name: self._stalled(name))  # type: ignore[misc]
        health.add("lag", live=self._blind)

    async def run(self) -> None:
        """Look every few seconds until cancelled; a broker that is away is asked again."""
        while True:
            await asyncio.sleep(EVERY_S)
            places = {place for name in (COMBINER, *self._followers) for place in self._places(name)}
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    ends = await self._probe.ends(sorted(places))
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("offsets_unknown", error=repr(error))
                continue
            self._look(ends)

    def _places(self, name: str) -> Iterator[Place]:
        if name == COMBINER:
            yield from self._combiner.committed or {}
            return
        for topic in READS[name]:
            for partition in self._followers[name].ownership.partitions:
                yield topic, partition

    def _look(self, ends: Mapping[Place, int]) -> None:
        self._asked_ms = now = monotonic_ms()
        held, self._waiting = self._waiting, {}
        for name in (COMBINER, *self._followers):
            if self._owning(name):
                self._not_owning_since_ms.pop(name, None)
            else:
                self._not_owning_since_ms.setdefault(name, now)
                continue
            for place in self._places(name):
                upto = self._upto(name, place, ends.get(place, 0))
                if upto < ends.get(place, 0):
                    before = held.get((name, place))
                    since_ms = before[1] if before is not None and before[0] == upto else now
                    self._waiting[name, place] = (upto, since_ms)

    def _owning(self, name: str) -> bool:
        if name == COMBINER:
            return self._combiner.committed is not None
        return self._followers[name].ownership.recovered

    def _upto(self, name: str, place: Place, end: int) -> int:
        """The next offset that this part has not done with.

        Until it has done anything after a takeover that is where the topic ended then: what came since must
        move it.
        """
        if name == COMBINER:
            return (self._combiner.committed or {}).get(place, end)
        follower = self._followers[name]
        settled = follower.settler.settled.get(place)
        if settled is not None:
            return settled + 1
        turn, ended = self._taken_over.get((name, place), (-1, end))
        if turn != follower.ownership.turn:
            self._taken_over[name, place] = (follower.ownership.turn, end)
            return end
        return ended

    def _stalled(self, name: str) -> str | None:
        now = monotonic_ms()
        since_ms = self._not_owning_since_ms.get(name)
        if since_ms is not None:
            seconds = f"{(now - since_ms) / 1000:.0f} s"
            if name == COMBINER and now - since_ms > self._stall_ms:
                return f"The combiner has no partitions that it may combine for {seconds}."
            if name != COMBINER and now - since_ms > UNRECOVERED_MS:
                return f"The tables of the {name} have not been recovered for {seconds}."
        for (part, (topic, partition)), (upto, since_ms) in self._waiting.items():
            if part == name and now - since_ms > self._stall_ms:
                return (
                    f"{topic}:{partition} has records, but the {name} has got no further than offset {upto} "
                    f"for {(now - since_ms) / 1000:.0f} s."
                )
        return None

    def _blind(self) -> str | None:
        silent_ms = monotonic_ms() - self._asked_ms
        if silent_ms > self._stall_ms + EVERY_S * 1000.0:
            return (
                f"The broker has not said for {silent_ms / 1000:.0f} s where topics end: "
                "a stall would not be seen."
            )
        return None
