"""The closer: decisions whose router died end as ``lost``, exactly one outcome each."""

from __future__ import annotations

import asyncio
from typing import Any

import faust
import msgspec
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from minds.closing import Ending, Ledger, Mark, OpenDecision, RouterWatch, lost_outcome, open_decision
from schemas.codec import Refused, decode_events, envelope_headers, to_json
from schemas.envelopes import Envelope
from schemas.outcomes import Outcome
from schemas.topics import DECISIONS, OUTCOMES, ROUTERS
from streams.contiguous import Contiguous
from streams.faust_tables import Ownership, Settler, Write, raw_table, stateful_agent
from streams.health import Health, Metrics
from streams.lag import OffsetProbe, Place
from streams.options import StreamsOptions
from streams.outcome_ends import OutcomeEnds, ended_ids
from streams.record_batches import RecordBatch
from transport.clock import monotonic_ms, now_ms
from transport.dead_letters import DeadLetterWriter, TooManyDeadLetters
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)

TABLE = "open_decisions"
READER_SILENT_MS = 5_000.0
TICK_S = 1.0
_ENTRY = msgspec.msgpack.Decoder(OpenDecision | Mark)
_OFFSET = b"o|"
_DECISION = b"d|"


class Closer:
    """Follows decisions and outcomes of the owned partitions, and closes what nobody else will.

    The table holds open decisions and, per topic partition, the offset up to which they are complete: the
    offsets are written last, so a crash replays a little and nothing is opened again that was closed.
    """

    def __init__(
        self,
        options: StreamsOptions,
        app: faust.App,
        reader: TableReader,
        producer: AIOKafkaProducer,
        boot: str,
        dead_letters: DeadLetterWriter,
        probe: OffsetProbe,
        health: Health,
        metrics: Metrics,
    ) -> None:
        self._probe = probe
        self._options = options
        self._app = app
        self._reader = reader
        self._producer = producer
        self._producer_id = f"{options.worker_id}.closer"
        self._boot = boot
        self._seq = 0
        self._dead = dead_letters
        self._health = health
        self._metrics = metrics
        self._table = raw_table(app, TABLE, DECISIONS)
        self._order = Contiguous(app, DECISIONS.name)
        self._ledgers: dict[int, Ledger] = {}
        self.applied: dict[Place, int] = {}
        """The last offset of each topic and partition whose events are in the ledgers."""
        self._unstored: set[Place] = set()
        self._pending: set[str] = set()
        self._watch = RouterWatch()
        self._complete_at: dict[Place, int] | None = None
        self._settle_from_ms = 0.0
        self.settler = Settler(self._collect)
        self.ownership = Ownership(app, DECISIONS.name)
        self.ownership.follow(self._table, self._load, self._lose)
        stateful_agent(app, DECISIONS.name, self._take_decisions, health)
        self._outcomes = OutcomeEnds(options.bootstrap, self._take_outcomes)

    # ------------------------------------------------------------------------------------------- the table

    def _load(self, partitions: frozenset[int]) -> None:
        self._ledgers = {partition: Ledger() for partition in partitions}
        for key, value in list(self._table.data.items()):
            if value is None:
                continue
            partition, _, name = key[2:].decode().partition("|")
            if int(partition) not in partitions:
                continue
            ledger = self._ledgers[int(partition)]
            if key.startswith(_OFFSET):
                self.applied[name, int(partition)] = msgspec.msgpack.decode(value)
            elif isinstance(entry := _ENTRY.decode(value), Mark):
                ledger.marks[name] = entry
            else:
                ledger.open[name] = entry
        for partition in partitions:
            if (at := self.applied.get((DECISIONS.name, partition))) is not None:
                self._order.taken_over(partition, at + 1)
        self._complete_at, self._settle_from_ms = None, monotonic_ms()
        self._outcomes.follow({p: self.applied.get((OUTCOMES.name, p), -1) + 1 for p in partitions})
        still_open = sum(len(ledger.open) for ledger in self._ledgers.values())
        log.info("table_recovered", table=TABLE, open=still_open, partitions=sorted(partitions))

    def _lose(self) -> None:
        self._ledgers, self.applied = {}, {}
        self._order.lost()
        self._unstored, self._pending = set(), set()
        self._outcomes.follow({})
        self.settler.drop()

    def _collect(self) -> list[Write]:
        writes: list[Write] = []
        for partition, ledger in self._ledgers.items():
            for decision_id in ledger.changed:
                key = _DECISION + f"{partition}|{decision_id}".encode()
                entry = ledger.open.get(decision_id) or ledger.marks.get(decision_id)
                if entry is not None:
                    writes.append((self._table, key, msgspec.msgpack.encode(entry), partition))
                elif key in self._table.data:
                    writes.append((self._table, key, None, partition))
            ledger.changed.clear()
        for topic, partition in self._unstored:
            key = _OFFSET + f"{partition}|{topic}".encode()
            value = msgspec.msgpack.encode(self.applied[topic, partition])
            writes.append((self._table, key, value, partition))
        self._unstored.clear()
        return writes

    # ------------------------------------------------------------------------------------------ the agents

    async def _take_decisions(self, stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            owned = self.ownership.recovered
            if not owned or not await self._order.admits(message.partition, message.offset):
                continue  # it comes again
            try:
                self._take_decision(message)
            except Refused as refused:
                if not await self._put_aside(message, refused):
                    return
            except Exception as error:  # a record that we can't handle must not stop the rest
                log.exception("record_failed", topic=message.topic, offset=message.offset)
                reason = f"{message.topic}: the record could not be taken: {type(error).__name__}."
                if not await self._put_aside(message, Refused("impossible_value", reason)):
                    return
            self.settler.note(event)

    def _take_decision(self, message: Any) -> None:
        ledger = self._ledgers.get(message.partition)
        if ledger is None or not self._moves((DECISIONS.name, message.partition), message.offset):
            return
        events = decode_events(DECISIONS, tuple(message.headers or ()), message.value).events
        producer = (message.key or b"").decode("utf-8", "replace")
        for decision in events:
            ledger.decided(open_decision(decision, producer))
        self._dead.accepted()
        self._metrics.events.labels(DECISIONS.name).inc(len(events))

    def _take_outcomes(self, batch: RecordBatch) -> None:
        at = (OUTCOMES.name, batch.tp.partition)
        ledger, first = self._ledgers.get(batch.tp.partition), self.applied.get(at, -1) + 1
        if ledger is None or not self._moves(at, batch.next_offset - 1):
            return
        now = now_ms()
        for decision_id in ended_ids(batch, first):
            self._pending.discard(decision_id)
            ledger.ended(decision_id, now)
        self.settler.settled[at] = self.applied[at]  # its position is the table's: nothing to acknowledge

    def _moves(self, at: Place, offset: int) -> bool:
        """Note an offset as applied; False where it was before."""
        if offset <= self.applied.get(at, -1):
            return False
        self.applied[at] = offset
        self._unstored.add(at)
        return True

    async def _put_aside(self, message: Any, refused: Refused) -> bool:
        self._metrics.dead.labels(message.topic).inc()
        headers = tuple(message.headers or ())
        try:
            await self._dead.write(
                message.topic, message.partition, message.offset, headers, message.value, refused
            )
        except TooManyDeadLetters as error:
            self._health.fail("closer", str(error))
            return False
        return True

    # ------------------------------------------------------------------------------------------- the timer

    async def run(self) -> None:
        """Close and store each second until cancelled; broker trouble is waited out."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outcomes.run())
            tasks.create_task(self._keep_ticking())

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("closer_interrupted", error=repr(error))

    async def _tick(self) -> None:
        reading = self._reader.caught_up and self._reader.silent_ms < READER_SILENT_MS
        routers = [seen.row for seen in self._reader.view(ROUTERS).rows()]
        self._watch.observe(routers, now_ms(), reading=reading)
        self._metrics.table_keys.labels(TABLE).set(sum(len(each.open) for each in self._ledgers.values()))
        if not self.ownership.recovered:
            return
        await self.settler.settle()
        if not reading or not await self._caught_up():
            return
        if monotonic_ms() - self._settle_from_ms < self._options.settle_ms:
            return
        now = now_ms()
        for partition, ledger in list(self._ledgers.items()):
            ledger.forget_marks(self._options.closing, now)
            for entry, ending in ledger.lost(self._watch, self._options.closing, now):
                if entry.decision_id not in self._pending:
                    self._pending.add(entry.decision_id)
                    await self._emit(partition, entry, ending, now)

    async def _caught_up(self) -> bool:
        """Whether both topics have been read at least up to where they ended at the takeover."""
        if self._complete_at is None:
            names = [topic.name for topic in (DECISIONS, OUTCOMES)]
            self._complete_at = await self._probe.ends([(name, p) for name in names for p in self._ledgers])
        self._complete_at = {
            at: end for at, end in self._complete_at.items() if self.applied.get(at, -1) < end - 1
        }
        return not self._complete_at

    async def _emit(self, partition: int, entry: OpenDecision, ending: Ending, now: int) -> None:
        envelope: Envelope[Outcome] = Envelope[Outcome](
            producer=self._producer_id,
            boot=self._boot,
            seq=self._seq,
            sent_at_ms=now,
            events=[lost_outcome(entry, ending, now)],
        )
        self._seq += 1
        turn = self.ownership.turn
        while turn == self.ownership.turn:
            try:
                await self._producer.send_and_wait(
                    OUTCOMES.name,
                    to_json(envelope),
                    key=entry.producer.encode(),
                    partition=partition,
                    headers=envelope_headers(Outcome),
                )
            except (KafkaError, OSError) as error:
                # It may have arrived all the same: the same envelope again keeps its identity.
                log.warning("lost_outcome_not_sent", error=type(error).__name__)
                await asyncio.sleep(0.5)
            else:
                self._metrics.lost.inc()
                log.info("decision_lost", decision=entry.decision_id, router=entry.router, ending=ending)
                return
