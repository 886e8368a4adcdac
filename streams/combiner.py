"""Stage one: folds raw topics into rollups, and commits an interval before it starts the next."""

from __future__ import annotations

import asyncio
from itertools import groupby
from operator import attrgetter
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from schemas.codec import Refused, headers_for, to_json
from schemas.operations import Claim, Rollup
from schemas.topics import CLAIMS, DECISIONS, ROLLUPS
from streams.health import Health, Metrics
from streams.interval import SOURCES, ClockBounds, Outcomes, SourceInterval, rollups_of
from streams.options import StreamsOptions
from streams.record_batches import RecordBatch, fetch_batches
from transport.clock import monotonic_ms, now_ms
from transport.consumers import committed_offsets, stop_consumer
from transport.dead_letters import DeadLetterWriter, TooManyDeadLetters

log = structlog.get_logger(__name__)

MAX_EVENTS = 1_000_000
"""An interval is flushed early beyond this: it bounds memory and the size of a re-cut."""
CATCHING_UP_S = 1.0
FAR_BEHIND = 50_000
"""Records: only with so many more to read does an interval grow, up to the time above."""
PRODUCE_TIMEOUT_S = 20.0
FETCH_BYTES = 1024 * 1024
"""Of a partition, and what the broker answers at once for: less waits until the interval ends."""
OTHER_BROKERS_S = 0.005
"""How long an interval waits for the answers of brokers after the first."""
PACE_GAIN = 0.1
"""Which part of an answer's lateness is added to what is asked for earlier."""
TOO_EARLY_S = 0.02
"""How much sooner an interval may end than it should: what the broker's wait may fall short by."""


class Pace:
    """When intervals are to end, and how long the broker is to wait with its answer for that.

    One interval a ``flush_s``, whatever the way there and back takes: how late answers come is learnt, and
    asked for so much earlier. A delay is not made up for by short intervals: the grid starts anew.
    """

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._due_s = 0.0
        self._takes_s = 0.0

    def is_over(self, now_s: float) -> bool:
        """Whether what was fetched now ends the interval; then the next one begins."""
        if now_s < self._due_s - TOO_EARLY_S:
            return False
        half_s = self._flush_s / 2
        late_s = min(now_s - self._due_s, half_s)
        self._takes_s = min(max(0.0, self._takes_s + PACE_GAIN * late_s), half_s)
        self._due_s = max(self._due_s + self._flush_s, now_s + half_s)
        return True

    def wait_ms(self, now_s: float) -> int:
        """How long the broker is to wait if it is asked now. Never much less than an interval: where nothing
        comes, the same fetch is sent again and again."""
        wait_s = max(self._due_s - now_s - self._takes_s, self._flush_s / 4)
        return max(1, round(1000 * wait_s))


class Combiner(ConsumerRebalanceListener):  # type: ignore[misc]
    """One member of the combiners' group.

    The order that exactness rests on: *claim* each assigned source partition (the claim record's offset is
    its generation), *confirm* by a commit that the group still knows us (so whoever is assigned later claims
    later), start at the committed offset, and per interval: read, write, wait for acks, commit, go on. After
    any break the interval is thrown away and everything is claimed anew.
    """

    def __init__(
        self,
        options: StreamsOptions,
        producer: AIOKafkaProducer,
        dead_letters: DeadLetterWriter,
        health: Health,
        metrics: Metrics,
    ) -> None:
        self._options = options
        self._producer = producer
        self._dead = dead_letters
        self._health = health
        self._metrics = metrics
        self._bounds = ClockBounds(options.wrong_clock_ahead_ms, options.wrong_clock_behind_ms)
        self._sources: dict[TopicPartition, SourceInterval] = {}
        self._outcomes = Outcomes()
        self._events = {topic: metrics.events.labels(topic) for topic in SOURCES}
        self._assigned = False
        self._broken = True
        self._turn = asyncio.Lock()
        self._pace = Pace(options.flush_ms / 1000.0)
        self._lagging_since_ms: float | None = None
        self._down_since_ms: float | None = monotonic_ms()
        health.add("combiner", live=self._stalled, ready=self._not_ready)

    # ------------------------------------------------------------------------------------ group membership

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Wait for a flush that is under way, then let go: a commit never crosses a rebalance."""
        async with self._turn:
            self._sources.clear()
            self._broken, self._assigned = True, False

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """The main loop takes over; nothing is read before it has."""
        self._broken, self._assigned = True, True

    # ------------------------------------------------------------------------------------------- main loop

    async def run(self) -> None:
        """Combine until cancelled. Broker trouble is waited out; a flood of bad records ends it."""
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._options.bootstrap,
                group_id=self._options.combiner_group,
                group_instance_id=f"{self._options.worker_id}-combiner",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=round(self._options.session_ms),
                heartbeat_interval_ms=round(self._options.heartbeat_interval_ms),
                fetch_max_wait_ms=max(1, round(self._options.flush_ms)),
                fetch_min_bytes=FETCH_BYTES,
                max_partition_fetch_bytes=FETCH_BYTES,
                request_timeout_ms=20_000,
                metadata_max_age_ms=10_000,
            )
            consumer.subscribe(list(SOURCES), listener=self)
            self._broken, self._assigned = True, False
            try:
                await consumer.start()
                await self._follow(consumer)
            except TooManyDeadLetters as error:
                self._health.fail("combiner", str(error))
                return
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("combiner_interrupted", error=repr(error), again_in_s=0.5)
                self._down_since_ms = self._down_since_ms or monotonic_ms()
            finally:
                self._sources.clear()
                await stop_consumer(consumer)
            await asyncio.sleep(0.5)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            if self._broken:
                if not self._assigned:
                    await asyncio.sleep(0.02)
                    continue
                async with self._turn:
                    if self._assigned:
                        await self._take_over(consumer)
                continue
            await self._read(consumer)
            async with self._turn:
                if not self._broken:
                    await self._flush(consumer)
            self._note_progress(consumer)

    async def _take_over(self, consumer: AIOKafkaConsumer) -> None:
        assigned = sorted(consumer.assignment())
        starts: dict[TopicPartition, int] = {}
        for tp, committed in (await committed_offsets(consumer, assigned)).items():
            if committed is None:
                committed = (await consumer.beginning_offsets([tp]))[tp]
            starts[tp] = committed
        claims = [await self._claim(tp) for tp in assigned]
        generations = dict(zip(assigned, [(await claim).offset for claim in claims], strict=True))
        try:
            if starts:
                await consumer.commit(starts)
        except (KafkaError, IllegalStateError) as error:
            log.info("takeover_not_confirmed", error=type(error).__name__)
            await asyncio.sleep(0.1)
            return
        self._sources = {}
        for tp, base in starts.items():
            consumer.seek(tp, base)
            self._sources[tp] = SourceInterval(
                tp.topic, tp.partition, generations[tp], base, base, self._outcomes
            )
        self._broken, self._down_since_ms = False, None
        log.info("combining", sources=len(starts), generations=sorted(generations.values())[-1:])

    async def _claim(self, tp: TopicPartition) -> asyncio.Future[Any]:
        claim = Claim(owner=self._options.worker_id, at_ms=now_ms())
        key = f"{tp.topic}:{tp.partition}".encode()
        sent: asyncio.Future[Any] = await self._producer.send(
            CLAIMS.name, to_json(claim), key=key, headers=headers_for(claim), partition=0
        )
        return sent

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        """One interval's records. Broken ones return early.

        The fetch is under way since the last interval was read, and the broker answers it when this one is to
        end, with all that there is: one fetch a flush, and nothing waits for the next.
        While far more waits than was read, freshness is lost anyway: then an interval may grow, so that
        catching up costs stage two less.
        """
        loop = asyncio.get_running_loop()
        flush_s = self._options.flush_ms / 1000.0
        began, events = loop.time(), 0
        while events < MAX_EVENTS and not self._broken:
            fetched = await fetch_batches(consumer, flush_s)
            now = loop.time()
            is_over = self._pace.is_over(now)
            consumer._fetcher._fetch_max_wait_ms = self._pace.wait_ms(now)
            events += await self._take_all(fetched)
            if self._behind(consumer) > max(events, FAR_BEHIND):
                if loop.time() >= began + CATCHING_UP_S:
                    break
            elif is_over:
                break
        if len(consumer._client.cluster.brokers()) > 1:  # the others' answers come within moments
            await self._take_all(await fetch_batches(consumer, OTHER_BROKERS_S))

    async def _take_all(self, fetched: list[RecordBatch]) -> int:
        """Fold what has been fetched; returns how many events it held."""
        events = 0
        for tp, each in groupby(fetched, key=attrgetter("tp")):
            events += await self._take(tp, list(each))
        return events

    async def _take(self, tp: TopicPartition, batches: list[RecordBatch]) -> int:
        """Fold batches of one source; returns how many events they held."""
        source = self._sources.get(tp)
        if source is None:
            return 0
        taken, refused = source.take(batches, self._bounds)
        if tp.topic == DECISIONS.name:  # the closer counts them, and puts bad ones aside
            return taken + len(refused)
        self._events[tp.topic].inc(taken)
        self._dead.accepted(sum(map(len, batches)) - len(refused))
        for record, reason in refused:
            await self._put_aside(tp, record, reason)
        return taken + len(refused)

    async def _put_aside(self, tp: TopicPartition, record: Any, refused: Refused) -> None:
        self._metrics.dead.labels(tp.topic).inc()
        headers = tuple(record.headers)
        await self._dead.write(tp.topic, tp.partition, record.offset, headers, record.value, refused)

    async def _flush(self, consumer: AIOKafkaConsumer) -> None:
        read = {tp: source for tp, source in self._sources.items() if source.upto > source.base}
        if not read:
            return
        began_ms = monotonic_ms()
        try:
            sent, key = [], self._options.worker_id.encode()
            for partition, value, partials in rollups_of(
                list(read.values()), self._options.worker_id, now_ms()
            ):
                batch = self._producer.create_batch()
                batch.append(key=key, value=value, timestamp=None, headers=headers_for(Rollup))
                batch.close()  # or the producer would wait for more of it
                sent.append(await self._producer.send_batch(batch, ROLLUPS.name, partition=partition))
                self._metrics.partials.inc(partials)
            await asyncio.wait_for(asyncio.gather(*sent), PRODUCE_TIMEOUT_S)
            await consumer.commit({tp: source.upto for tp, source in read.items()})
        except (KafkaError, IllegalStateError, TimeoutError) as error:
            # What of it reached the log is unknown: cut it again, under a generation that outranks it.
            log.warning("interval_discarded", error=type(error).__name__)
            self._metrics.recuts.inc()
            self._sources.clear()
            self._broken = True
            return
        self._metrics.rollups.inc(len(sent))
        for source in read.values():
            source.next()
        self._outcomes.forget_names()
        self._lagging_since_ms = None
        self._metrics.flush_ms.observe(monotonic_ms() - began_ms)

    # ---------------------------------------------------------------------------------------------- health

    @property
    def committed(self) -> dict[tuple[str, int], int] | None:
        """The committed offset of each source partition that it holds; None while it may not combine."""
        if self._broken:
            return None
        return {(tp.topic, tp.partition): source.base for tp, source in self._sources.items()}

    def _behind(self, consumer: AIOKafkaConsumer) -> int:
        """Records that wait to be read, as far as the last fetches told."""
        return sum(
            max(0, (consumer.highwater(tp) or 0) - source.upto) for tp, source in self._sources.items()
        )

    def _note_progress(self, consumer: AIOKafkaConsumer) -> None:
        if self._behind(consumer) == 0:
            self._lagging_since_ms = None
        elif self._lagging_since_ms is None:
            self._lagging_since_ms = monotonic_ms()

    def _stalled(self) -> str | None:
        for since_ms, what in (
            (self._lagging_since_ms, "has records to read but has committed none"),
            (self._down_since_ms, "has no partitions that it may combine"),
        ):
            if since_ms is not None and monotonic_ms() - since_ms > self._options.stall_ms:
                return f"The combiner {what} for {(monotonic_ms() - since_ms) / 1000:.0f} s."
        return None

    def _not_ready(self) -> str | None:
        return "The combiner has not taken its partitions over yet." if self._broken else None
