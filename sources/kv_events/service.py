"""KV events of all engines that an agent watches, from their sockets to fleet.kv."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog
import zmq
import zmq.asyncio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from minds.prefix_keys import BlockHasher, Salt
from schemas.caches import KvEvent
from schemas.topics import KV
from sources.boots import Boot
from sources.kv_events.config import KvEventsConfig
from sources.kv_events.follower import RankFollower
from sources.kv_events.stream import KvStream
from transport.clock import now_ms
from transport.producer import EventProducer

log = structlog.get_logger(__name__)

_RETRY_S = 5.0


class Endpoint(Protocol):
    """What is needed of an engine's description."""

    @property
    def instance(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def pools(self) -> list[str]: ...
    @property
    def tokenizer(self) -> str | None: ...
    @property
    def kv_events(self) -> KvEventsConfig | None: ...


_Described = tuple[KvEventsConfig, str, str]
"""The sockets, the home pool and the tokenizer: another one of these is another stream."""


@dataclass(slots=True)
class _Followed:
    described: _Described
    streams: list[KvStream]
    tasks: list[asyncio.Task[None]]


class KvEventsSource(Collector):
    """Follows the streams of the engines that have one; ``boot_of`` gives an instance's boot where known."""

    topics = (KV,)

    def __init__(
        self, salt: Salt | None, boot_of: Callable[[str], Boot | None], *, look_after_s: float = 5.0
    ) -> None:
        self._salt = salt
        self._look_after_s = look_after_s
        self._boot_of = boot_of
        self._context: zmq.asyncio.Context | None = None
        self._events: EventProducer | None = None
        self._followed: dict[str, _Followed] = {}
        self._wanted_without_salt: list[str] = []

    async def start(self, events: EventProducer) -> None:
        """Take the producer; streams begin with ``apply``."""
        self._events = events
        self._context = zmq.asyncio.Context()

    async def stop(self) -> None:
        """End all streams."""
        await asyncio.gather(*(self._end(instance) for instance in list(self._followed)))
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def apply(self, endpoints: Sequence[Endpoint]) -> None:
        """Follow exactly these engines' streams."""
        wanted: dict[str, _Described] = {}
        for one in endpoints:
            if one.kv_events is not None and one.tokenizer is not None:
                wanted[one.instance] = (one.kv_events.at(one.url), one.pools[0], one.tokenizer)
        self._wanted_without_salt = sorted(wanted) if self._salt is None else []
        if self._salt is None:
            return
        for instance in list(self._followed):
            if self._followed[instance].described != wanted.get(instance):
                await self._end(instance)
        for instance, described in wanted.items():
            if instance not in self._followed:
                self._followed[instance] = self._begin(instance, described, self._salt)

    def unready(self) -> list[str]:
        """Why KV events are not followed as described, as sentences."""
        if not self._wanted_without_salt:
            return []
        names = ", ".join(self._wanted_without_salt[:10])
        return [f"KV events of {names} are not followed: there is no prefix salt."]

    def streams(self) -> Iterable[tuple[str, KvStream]]:
        """The streams by instance."""
        return [(name, stream) for name, one in self._followed.items() for stream in one.streams]

    def _begin(self, instance: str, described: _Described, salt: Salt) -> _Followed:
        if self._context is None:
            raise RuntimeError("KV events have not started.")
        config, pool, tokenizer = described
        hasher = BlockHasher(tokenizer, salt)
        streams = [
            KvStream(
                self._context,
                config,
                rank,
                follower=lambda rank: RankFollower(instance, pool, rank, hasher, now_ms=now_ms()),
                boot=lambda: self._boot_of(instance),
                emit=self._emit,
                look_after_s=self._look_after_s,
            )
            for rank in range(config.ranks)
        ]
        tasks = [
            asyncio.create_task(self._run(instance, stream), name=f"kv-{instance}-{rank}")
            for rank, stream in enumerate(streams)
        ]
        log.info("kv_events_followed", instance=instance, endpoint=config.endpoint, ranks=config.ranks)
        return _Followed(described, streams, tasks)

    async def _end(self, instance: str) -> None:
        if one := self._followed.pop(instance, None):
            for task in one.tasks:
                task.cancel()
            await asyncio.gather(*one.tasks, return_exceptions=True)

    def _emit(self, event: KvEvent) -> None:
        if self._events is None:
            raise RuntimeError("KV events have not started.")
        with suppress(RuntimeError):  # the producer is closing: there is nobody to tell any more
            self._events.emit(KV, event)

    async def _run(self, instance: str, stream: KvStream) -> None:
        while True:
            try:
                await stream.run()
            except zmq.ZMQError as error:
                log.error("kv_socket_unusable", instance=instance, reason=error.strerror or str(error))
            except Exception as error:
                # Without a traceback: a console may print local variables with it, and they hold token ids.
                at = traceback.extract_tb(error.__traceback__)[-1]
                log.error(
                    "kv_stream_failed_inside",
                    instance=instance,
                    error=type(error).__name__,
                    line=f"{at.name}:{at.lineno}",
                )
                stream.followers.clear()
            await asyncio.sleep(_RETRY_S)

    def collect(self) -> Iterable[Metric]:
        """The streams' counters for Prometheus."""
        labels = ["instance", "rank"]
        batches = CounterMetricFamily(
            "tokenfleet_source_kv_batches",
            "KV event batches by what became of them: applied, duplicate, lost, malformed.",
            labels=[*labels, "result"],
        )
        turns = CounterMetricFamily(
            "tokenfleet_source_kv_turns",
            "Breaks in a stream: restart, gap_filled, gap_lost, replay_failed.",
            labels=[*labels, "kind"],
        )
        held = GaugeMetricFamily(
            "tokenfleet_source_kv_fleet_blocks", "Fleet blocks held, all media.", labels=labels
        )
        whole = GaugeMetricFamily(
            "tokenfleet_source_kv_whole", "1 where all of the cache's content is known.", labels=labels
        )
        for instance, stream in self.streams():
            for rank, follower in stream.followers.items():
                who, counts = [instance, str(rank)], follower.position.counts
                batches.add_metric([*who, "applied"], counts.applied)
                batches.add_metric([*who, "duplicate"], counts.duplicates)
                batches.add_metric([*who, "lost"], counts.batches_lost)
                turns.add_metric([*who, "restart"], counts.restarts)
                turns.add_metric([*who, "gap_filled"], counts.gaps_filled)
                turns.add_metric([*who, "gap_lost"], counts.gaps_lost)
                held.add_metric(who, sum(map(len, follower.view.fleet_blocks().values())))
                whole.add_metric(who, float(follower.whole))
            who = [instance, str(stream.rank)]
            batches.add_metric([*who, "malformed"], stream.malformed.total())
            turns.add_metric([*who, "replay_failed"], stream.replays_failed)
        return [batches, turns, held, whole]
