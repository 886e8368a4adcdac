"""A model log: stages one and two, as they are, under seeded schedules of faults, against one plain loop.

In memory there are raw topics with partitions, a log of rollups and committed offsets. Combiners read records
in pieces, crash, stall and come back as zombies, hand partitions over; stage two crashes after its last
stored state, reads rollups again, and goes through the changelog's form. Events are duplicated, reordered,
late, from skewed clocks, from restarted engines, with counters that fall, with missing, renamed and
non-finite readings, and some are no events at all. In the end every published row equals the one that a
single-threaded fold of the same log publishes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from minds.capacity.cell_columns import CellColumns
from minds.capacity.columns import ColumnFold, Keys, Name
from minds.capacity.folds import (
    Delta,
    State,
    add,
    decode_state,
    encode_state,
    fold_decision,
    fold_kv_event,
    fold_outcome,
    fold_telemetry,
    new_state,
    parse_key,
)
from minds.capacity.live import SILENT_MS, Live
from minds.capacity.outcomes import FIELDS, OutcomeFold, names_are_sound
from minds.capacity.partials import Grouped, with_partials
from minds.capacity.rows import Grants, Stamp, instance_row, members_of, region_row
from minds.capacity.table import CapacityTable
from minds.merge import Interval, Partial
from minds.windows import LATE_AFTER_MS
from schemas.base import header_of
from schemas.caches import KvEvent
from schemas.codec import Refused, decode_events, to_json
from schemas.decisions import Decision
from schemas.endpoints import EndpointRow
from schemas.fastpath import encode
from schemas.outcomes import CAUSES, Outcome
from schemas.prefixes import PrefixKey
from schemas.projections import ProjectedReader
from schemas.topics import DECISIONS, KV, OUTCOMES, TELEMETRY, topic
from tests.minds.capacity.outcome_columns import columns_of

T0 = 1_796_000_000_000
SCHEDULES = 1_000
BOUNDS_MS = 300_000
READER = ProjectedReader(OUTCOMES, FIELDS)
OUTCOME = (("schema", b"outcome/1"),)
HEADERS = {t.name: (("schema", header_of(t.model).encode()),) for t in (TELEMETRY, DECISIONS, KV)}
POOLS = ("a@v1", "b@v2")
FOLDS = {
    OUTCOMES.name: fold_outcome,
    TELEMETRY.name: fold_telemetry,
    DECISIONS.name: fold_decision,
    KV.name: fold_kv_event,
}


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    value: bytes


@dataclass
class Source:
    """One partition of a raw topic."""

    topic: str
    records: list[Record] = field(default_factory=list)
    committed: int = 0
    generation: int = 0


def draw_outcome(rng: random.Random, now: int) -> bytes:
    pool = rng.choice(POOLS)
    cause = rng.choices(CAUSES, (60, 8, 8, 8, 12, 4))[0]
    placed = cause != "shed"
    at = now - rng.choice(
        [0, 0, 0, 40, 2_000, 30_000, LATE_AFTER_MS + 5, -400_000 if rng.random() < 0.1 else -3_000]
    )
    return to_json(
        Outcome(
            decision_id="d", intent_id="n", intent_inferred=False, attempt=1, router="r", router_boot="b",
            tenant="t", service_class="c", pool=pool, entry_region=rng.choice(["eu", "us"]),
            region=rng.choice(["eu", "us"]) if placed else None,
            instance=f"i{rng.randrange(3)}" if placed else None,
            instance_boot=rng.choice(["b0", "b1", None]) if placed else None,
            cause=cause, at_ms=at, intent_started_at_ms=T0, started_at_ms=T0,
            ttft_ms=rng.choice([None, rng.lognormvariate(5, 1)]), tpot_ms=rng.choice([None, 0.0, 20.0]),
            queue_ms=rng.choice([None, 0.0, 3.5]),
            output_tokens=rng.choice([None, 0, 9, 300]), wasted_tokens=rng.choice([None, 0, 5]),
            ttft_slo_ms=1.0, tpot_slo_ms=1.0, deadline_at_ms=deadline(rng, now), within_slo=cause == "ok",
            work_tokens=rng.choice([None, 10.5, 400.0]),
        )
    )  # fmt: skip


def draw_telemetry(rng: random.Random, now: int, totals: dict[str, float]) -> bytes:
    """A scrape; counters rise, or fall within a boot; some readings are missing, renamed or impossible."""
    name = f"i{rng.randrange(3)}"
    boot = rng.randrange(2)
    key = f"{name}.{boot}"
    totals[key] = 0.0 if rng.random() < 0.1 else totals.get(key, 0.0) + rng.randrange(500)
    waiting = rng.choice(["2.0", "0.0", "-3.0", "7.0"])
    gauge = rng.choice(["requests_waiting", "requests_waiting", "num_requests_waiting"])  # renamed: unknown
    return (
        b'{"instance":"%s","boot":"b%d","boot_started_at_ms":%d,"engine":"vllm","region":"eu","pools":["%s"],'
        b'"at_ms":%d,"reachable":%s,"rank":%d,"gauges":{"%s":{"value":%s,"quality":"fresh","age_ms":0.0},'
        b'"kv_usage_ratio":{"value":%s,"quality":"fresh","age_ms":5.0}},'
        b'"counters":{"generation_tokens_total":{"value":%.1f,"quality":"fresh","age_ms":0.0}},'
        b'"latencies":[{"name":"ttft","bounds_ms":[10.0,200.0],"counts":[%d,%d,%d],"sum_ms":0.0}]}'
    ) % (
        name.encode(), boot, T0 - 60_000 + boot, rng.choice(POOLS).encode(), now - rng.randrange(3_000),
        rng.choice([b"true", b"true", b"false"]), rng.randrange(2), gauge.encode(), waiting.encode(),
        rng.choice([b"0.5", b"0.9", b"1.5"]), totals[key],
        totals[key] // 2, totals[key] // 3, totals[key] // 7,
    )  # fmt: skip


def draw_decision(rng: random.Random, now: int) -> bytes:
    return to_json(
        Decision(
            decision_id="d", intent_id="n", intent_inferred=False, attempt=1, at_ms=now,
            intent_started_at_ms=now, deadline_at_ms=deadline(rng, now), router="r", router_boot="b",
            tenant="t", service_class="c", pool=rng.choice(POOLS), entry_region="eu",
            verdict=rng.choice(["dispatched", "dispatched", "shed"]), region="eu",
            instance=f"i{rng.randrange(3)}", instance_boot=rng.choice(["b0", "b1", None]), ttft_slo_ms=1.0,
            tpot_slo_ms=1.0, work_tokens=rng.choice([0.0, 10.5, 400.0]),
        )
    )  # fmt: skip


def draw_kv_event(rng: random.Random, now: int) -> bytes:
    blocks = [f"{rng.randrange(2**64):016x}" for _ in range(rng.randint(1, 3))]
    prefix = PrefixKey(scheme="tok:t:16", salt_id="s", blocks=blocks)
    kind = rng.choice(["stored", "removed", "removed", "cleared"])
    return to_json(
        KvEvent(
            instance=f"i{rng.randrange(3)}", boot=f"b{rng.randrange(2)}", pool=rng.choice(POOLS), at_ms=now,
            engine_seq=1, kind=kind, prefix=None if kind == "cleared" else prefix,
        )
    )  # fmt: skip


def deadline(rng: random.Random, now: int) -> int:
    return now // 60_000 * 60_000 + rng.choice([1_000, 30_000, 90_000])


DRAWS: dict[str, Callable[[random.Random, int, dict[str, float]], bytes]] = {
    OUTCOMES.name: lambda rng, now, _: draw_outcome(rng, now),
    TELEMETRY.name: draw_telemetry,
    DECISIONS.name: lambda rng, now, _: draw_decision(rng, now),
    KV.name: lambda rng, now, _: draw_kv_event(rng, now),
}


def draw_log(rng: random.Random) -> list[Source]:
    sources = [Source(each.name) for each in (OUTCOMES, OUTCOMES, TELEMETRY, DECISIONS, KV)]
    totals: dict[str, float] = {}
    now = T0
    for _ in range(rng.randint(10, 80)):
        now += rng.choice([0, 5, 200, 1_500, 20_000])
        source = rng.choice(sources)
        value = DRAWS[source.topic](rng, now, totals)
        if rng.random() < 0.05:
            bad = [b"{no json", b"", value[:-1], value.replace(b"0.5", b"NaN"), value.replace(b"@v", b"@ v")]
            value = rng.choice(bad)
        for _ in range(rng.choice([1, 1, 1, 1, 2])):  # a producer that sends twice
            source.records.append(Record(len(source.records), now, value))
    return sources


def usable(source: Source, record: Record) -> list[Any]:
    """The events of a record that may be folded, as the plain loop takes them."""
    try:
        if source.topic != OUTCOMES.name:
            events = decode_events(topic(source.topic), HEADERS[source.topic], record.value).events
        else:
            events = [e for e in READER.events(OUTCOME, record.value) if names_are_sound(e)]
    except Refused:
        return []
    return [event for event in events if event.at_ms - record.timestamp <= BOUNDS_MS]


def reference(sources: list[Source]) -> dict[str, State]:
    deltas: dict[str, Delta] = {}
    for source in sources:
        for record in source.records:
            for event in usable(source, record):
                FOLDS[source.topic](deltas, event, record.timestamp)
    states: dict[str, State] = {}
    for key, delta in deltas.items():
        states[key] = new_state()
        add(states[key].closed, delta)
    return states


Told = tuple[dict[str, bytes], list[tuple[Interval, CellColumns]]]
"""A rollup of one source: encoded deltas by key, and cells."""


@dataclass
class Reader:
    """A combiner's hold on one source: a generation, and the interval that it has read."""

    number: int
    generation: int
    base: int
    upto: int
    written: bool = False

    def interval(self, source: Source) -> Interval:
        return Interval(f"{source.topic}:{self.number}", self.generation, self.base, self.upto)

    def told(self, source: Source) -> tuple[dict[str, bytes], CellColumns | None]:
        records = source.records[self.base : self.upto]
        mark = max((record.timestamp for record in records), default=0)
        told: dict[str, Delta] = {}
        names: list[Name] = []
        fold, columns, plain = OutcomeFold(), ColumnFold(Keys(names)), []
        for record in records:
            for event in usable(source, record):
                if source.topic != OUTCOMES.name:
                    FOLDS[source.topic](told, event, record.timestamp)
                elif record.timestamp - event.at_ms <= LATE_AFTER_MS and record.offset % 7:
                    plain.append(event)
                elif fold.take([event], record.timestamp - LATE_AFTER_MS, record.timestamp):
                    fold.take_one(event, record.timestamp)
        found = told if source.topic != OUTCOMES.name else fold.deltas(mark)
        columns.take(columns_of(plain, names))
        columns.add_ends(found, mark)
        cells = columns.cells(mark).get(0)
        return {key: msgspec.json.encode(delta) for key, delta in found.items()}, cells


class Run:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sources = draw_log(self.rng)
        self.rollups: list[list[tuple[Interval, dict[str, bytes], CellColumns | None]]] = []
        self.readers = [self.take_over(number) for number in range(len(self.sources))]
        self.zombies: list[Reader] = []
        self.table = CapacityTable()
        self.stored: dict[str, bytes] = {}
        self.stored_upto = 0
        self.applied_upto = 0
        self.now = T0

    def take_over(self, number: int) -> Reader:
        source = self.sources[number]
        source.generation += 1
        return Reader(number, source.generation, source.committed, source.committed)

    def write(self, *readers: Reader) -> None:
        """A flush: one rollup of all these sources, or more where the cells are many."""
        together = []
        for reader in readers:
            source = self.sources[reader.number]
            if reader.upto > reader.base:
                interval = reader.interval(source)
                deltas, cells = reader.told(source)
                if cells is not None and self.rng.random() < 0.3:
                    for part in cells.split(300):
                        mine = {key: deltas.pop(key) for key in part.keys if key in deltas}
                        self.rollups.append([(interval, mine, part)])
                    cells = None
                together.append((interval, deltas, cells))
            reader.written = True
        if together:
            self.rollups.append(together)

    def step_reader(self, reader: Reader, *, zombie: bool) -> None:
        source = self.sources[reader.number]
        if reader.written:
            if zombie:
                return  # the group refuses its commit
            source.committed = reader.base = reader.upto
            reader.written = False
        elif self.rng.random() < 0.5:
            reader.upto = min(len(source.records), reader.upto + self.rng.randint(1, 7))
        elif zombie:
            self.write(reader)
        else:
            others = [
                r for r in self.readers if not r.written and r is not reader and self.rng.random() < 0.5
            ]
            self.write(reader, *others)

    def step_stage_two(self) -> None:
        roll = self.rng.random()
        lives = self.table.lives
        if roll < 0.15:  # store what changed, then commit
            if self.rng.random() < 0.5:
                list(self.table.merge_kept())
            self.stored = {key: encode_state(live.state) for key, live in lives.items()}
            self.stored_upto = self.applied_upto
        elif roll < 0.3:  # a crash, or a rebalance: back to what was stored, and read again from there
            self.table = CapacityTable()
            for key, value in self.stored.items():
                self.table.load(0, key, decode_state(value))
            self.applied_upto = max(0, self.stored_upto - self.rng.choice([0, 0, 1, 3]))
        elif roll < 0.5:  # the publisher looks in between: that must change nothing
            self.now += self.rng.choice([0, 100, 900, 9_000])
            for live in self.rng.sample(list(lives.values()), len(lives) // 2):
                live.stats(self.now)
            self.look_at_all()
        else:
            self.apply_some(self.rng.randint(1, 3))

    def look_at_all(self) -> None:
        """The counts of all keys at once are those of each."""
        lanes = [live.lane for live in self.table.lives.values() if live.lane >= 0]
        counts, sound = self.table.counts(lanes, self.now)
        found = dict(zip(lanes, zip(counts.tolist(), sound.tolist(), strict=True), strict=True))
        for live in self.table.lives.values():
            was_filled = live.filled
            mine = [count for window in live.counts(self.now) for count in window]
            if was_filled and found[live.lane][1]:
                assert found[live.lane][0] == mine

    def apply_some(self, count: int) -> None:
        for rollup in self.rollups[self.applied_upto : self.applied_upto + count]:
            grouped: Grouped = {}
            for interval, deltas, _ in rollup:
                for key, delta in deltas.items():
                    partial = Partial(*interval, msgspec.json.decode(delta, type=Delta))
                    grouped.setdefault(key, []).append(partial)
            cells = [with_partials(grouped, i, columns) for i, _, columns in rollup if columns is not None]
            marks = [partial.delta.mark_ms for partials in grouped.values() for partial in partials]
            self.now = max([self.now, *marks, *(each.columns.mark_ms for each in cells)])
            self.table.apply(0, self.applied_upto, grouped, cells, self.now)
            self.applied_upto += 1

    def run(self) -> None:
        for _ in range(self.rng.randint(20, 120)):
            roll = self.rng.random()
            number = self.rng.randrange(len(self.sources))
            if roll < 0.08:
                if self.rng.random() < 0.6:
                    self.zombies.append(self.readers[number])
                self.readers[number] = self.take_over(number)
            elif roll < 0.2 and self.zombies:
                self.step_reader(self.rng.choice(self.zombies), zombie=True)
            elif roll < 0.65:
                self.step_reader(self.readers[number], zombie=False)
            else:
                self.step_stage_two()
        for reader in self.readers:
            if reader.written:
                self.step_reader(reader, zombie=False)
            reader.upto = len(self.sources[reader.number].records)
        self.write(*self.readers)
        for zombie in self.zombies:
            if self.rng.random() < 0.7:
                self.write(zombie)
        while self.applied_upto < len(self.rollups):
            self.apply_some(3)


def rows_of(live: dict[str, Live], now: int) -> dict[str, bytes]:
    """Every row that the publisher would write at this time."""
    stamp, rows = Stamp(now, 1, 1), {}
    by_pool: dict[str, list[Any]] = {}
    for number in range(3):
        for pool in POOLS:
            endpoint = EndpointRow(
                as_of_ms=now, valid_for_ms=60_000.0, epoch=1, version=1, instance=f"i{number}", boot="b0",
                boot_started_at_ms=T0 - 60_000, engine="vllm", url="http://127.0.0.1:1", region="eu",
                pools=[pool],
            )  # fmt: skip
            row = instance_row(endpoint, live.get(f"i|{pool}|i{number}"), stamp)
            rows[f"i|{pool}|i{number}"] = encode(row)
            by_pool.setdefault(pool, []).append(row)
    for key, each in live.items():
        parsed = parse_key(key)
        if parsed.kind == "r":
            members = members_of(by_pool[parsed.pool] if parsed.name == "eu" else [])
            grants = Grants(None, 0.0, 0.0)
            rows[key] = encode(region_row(parsed.name, parsed.pool, members, each, grants, stamp))
    return rows


def check(seed: int) -> list[str]:
    """The keys whose rows differ from the reference's, at several times."""
    schedule = Run(seed)
    schedule.run()
    wanted = {key: Live(state) for key, state in reference(schedule.sources).items()}
    last = schedule.now + SILENT_MS  # the percentiles of a key that is busy lag
    wrong: list[str] = []
    for now in (last, last + 1_000, last + 4_000, last + 45_000):
        got, want = rows_of(schedule.table.lives, now), rows_of(wanted, now)
        wrong += [f"{seed}: {key} at +{now - last}" for key in want if got.get(key) != want[key]]
    return wrong


@pytest.mark.parametrize("part", range(4))
def test_every_schedule_ends_in_the_rows_of_a_single_threaded_fold(part: int) -> None:
    wrong = [found for seed in range(part, SCHEDULES, 4) if (found := check(seed))]
    assert wrong == []


def test_the_schedules_hold_what_they_are_for() -> None:
    zombies = recuts = again = late = refused = impossible = 0
    for seed in range(100):
        schedule = Run(seed)
        schedule.run()
        cuts = [interval for rollup in schedule.rollups for interval, _, _ in rollup]
        order: dict[str, int] = {}
        for source, generation, _, _ in cuts:
            zombies += generation < order.get(source, 0)
            order[source] = max(generation, order.get(source, 0))
        starts = {(source, base, upto) for source, _, base, upto in cuts}
        recuts += len(starts) - len({(source, base) for source, base, _ in starts})
        again += schedule.stored_upto > 0
        late += sum(live.late for live in schedule.table.lives.values())
        refused += sum(not usable(s, r) for s in schedule.sources for r in s.records)
        impossible += sum(live.quarantined(T0) is not None for live in schedule.table.lives.values())
    assert min(zombies, recuts, again, late, refused, impossible) > 20
