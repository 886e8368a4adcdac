"""Seeded faults against workers on a real broker, and the plain fold of the log that must come out."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from infra.kafka.embedded import EmbeddedKafka
from minds.capacity.folds import (
    Delta,
    State,
    add,
    decode_state,
    fold_outcome,
    fold_telemetry,
    new_state,
    parse_key,
)
from minds.capacity.live import Live
from minds.capacity.rows import Grants, Stamp, instance_row, members_of, region_row
from minds.windows import LATE_AFTER_MS
from schemas.codec import Refused, decode_events, headers_for, to_json
from schemas.endpoints import EndpointRow
from schemas.fastpath import encode
from schemas.outcomes import CAUSES, Outcome
from schemas.readings import EngineCounters, EngineGauges, Reading
from schemas.telemetry import Telemetry
from schemas.topics import INSTANCES, OUTCOMES, REGIONS, TELEMETRY
from streams.capacity import TABLES, UPTO
from streams.options import StreamsOptions
from tests.streams.fleet import Log, Worker, a_scrape, an_endpoint, an_outcome
from transport.clock import now_ms

REGION_NAMES = ("eu", "us")
REPAIRED = ("prefill_tokens_per_s", "decode_tokens_per_s", "prefix_hit_ratio", "preemptions_per_s")
"""Figures that a row takes from when telemetry last came, not from its own time; the tables hold them too."""


def fleet_of(unique: str, count: int) -> list[EndpointRow]:
    """Instances of three pools in two regions."""
    return [
        an_endpoint(f"i-{unique}-{n}", f"m{n % 3}-{unique}@v1", REGION_NAMES[n % 2]) for n in range(count)
    ]


@dataclass
class Traffic:
    """What routers and sources write: mostly in order and true, some not."""

    log: Log
    rng: random.Random
    unique: str
    endpoints: list[EndpointRow]

    async def flow(self, done: asyncio.Event) -> None:
        """Outcomes and scrapes until ``done``; a broker that is away is waited for, as producers do."""
        totals = {endpoint.instance: 0.0 for endpoint in self.endpoints}
        number, scraped_ms = 0, 0
        while not done.is_set():
            outcomes = [self._outcome(number + n) for n in range(self.rng.randint(1, 20))]
            number += len(outcomes)
            self.rng.shuffle(outcomes)
            router = f"router-{self.unique}-{self.rng.randrange(6)}"
            for _ in range(self.rng.choice((1, 1, 1, 1, 2))):  # a producer that sends twice
                await self.log.send(OUTCOMES, outcomes, router)
            if self.rng.random() < 0.3:  # not our envelope: one event a record
                await self._one(self._outcome(number))
                number += 1
            if now_ms() - scraped_ms >= 1_000:
                scraped_ms = now_ms()
                await self._scrape(totals)
            await asyncio.sleep(0.05)

    def _outcome(self, number: int) -> Outcome:
        endpoint, cause = self.rng.choice(self.endpoints), self.rng.choices(CAUSES, (60, 8, 8, 8, 12, 4))[0]
        # In time, late, too late for any window, from a clock ahead of ours, and from one that is wrong.
        skew_ms = self.rng.choice([*[0] * 12, -40, -2_000, -30_000, -LATE_AFTER_MS - 9_000, 120_000])
        if self.rng.random() < 0.005:
            skew_ms = 900_000
        changes: dict[str, Any] = {"cause": cause, "region": endpoint.region, "instance": endpoint.instance}
        if cause == "shed":
            changes |= {"region": None, "instance": None, "instance_boot": None, "ttft_ms": None}
        else:
            changes |= {"ttft_ms": self.rng.choice((None, self.rng.lognormvariate(5, 1)))}
        return an_outcome(
            f"d-{self.unique}-{number}",
            endpoint.pools[0],
            at_ms=now_ms() + skew_ms,
            within_slo=cause == "ok",
            output_tokens=self.rng.choice((None, 0, 9, 300)),
            wasted_tokens=self.rng.choice((None, 0, 5)),
            **changes,
        )

    async def _one(self, event: Any, value: bytes | None = None) -> None:
        topic = TELEMETRY if isinstance(event, Telemetry) else OUTCOMES
        await self.log.producer.send_and_wait(
            topic.name, value or to_json(event), key=self.unique.encode(), headers=headers_for(event)
        )

    async def _scrape(self, totals: dict[str, float]) -> None:
        """A scrape of each: counters that fall within a boot, readings that are missing or no number."""
        events: list[Telemetry] = []
        for endpoint in self.endpoints:
            reset = self.rng.random() < 0.1
            total = totals[endpoint.instance] = (
                0.0 if reset else totals[endpoint.instance] + self.rng.randrange(500)
            )
            gauges = EngineGauges(
                requests_running=self.rng.choice((Reading(), fresh(self.rng.randrange(9)))),
                kv_usage_ratio=fresh(0.5),
            )
            counters = EngineCounters(generation_tokens_total=fresh(total))
            scrape = a_scrape(endpoint).model_copy(update={"gauges": gauges, "counters": counters})
            if self.rng.random() < 0.1:
                await self._one(scrape, to_json(scrape).replace(b'"value":0.5', b'"value":NaN'))
            else:
                events.append(scrape)
        if events:
            await self.log.send(TELEMETRY, events, f"source-{self.unique}")


def fresh(value: float) -> Reading:
    return Reading(value=float(value), quality="fresh", age_ms=0.0)


# ---------------------------------------------------------------------------------------------- the faults


async def strike(
    rng: random.Random, broker: EmbeddedKafka, first: Worker, second: Worker, told: list[str]
) -> None:
    """A kill -9, a broker restart and a rebalance, in the order and at the distances that the seed draws.

    None waits for the one before to be over, but for a worker that must be there to leave again.
    """
    blows = ["worker killed", "broker stopped" if rng.random() < 0.5 else "broker killed", "rebalance"]
    rng.shuffle(blows)
    for blow in blows:
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        began = now_ms()
        if blow == "worker killed":
            first.kill()
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            first.start()
        elif blow == "rebalance":
            second.start()
            await second.ready()
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            if rng.random() < 0.5:
                await asyncio.to_thread(second.stop)
            else:
                second.kill()
        else:
            await asyncio.to_thread(broker.stop if blow == "broker stopped" else broker.kill)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await asyncio.to_thread(broker.start)
        told.append(f"{blow}, {(now_ms() - began) / 1000:.1f} s")


async def supervised(worker: Worker, told: list[str]) -> None:
    """What an operator's supervisor does: a worker that is red is started again."""
    status, reasons = await worker.get("/healthz")
    if status == 503:
        told.append(f"restarted for {reasons}")
        worker.kill()
        worker.start()
        await worker.ready()


# ------------------------------------------------------------------------------------------- the reference


async def records_of(bootstrap: str, topic: str) -> list[Any]:
    """All records of a topic, partition by partition in order."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        numbers = await consumer._client._wait_on_metadata(topic) or set()
        tps = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        await consumer.seek_to_beginning(*tps)
        found: list[Any] = []
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += records
        return found
    finally:
        await consumer.stop()


async def reference(log: Log, unique: str) -> tuple[dict[str, State], int]:
    """One loop over what is in the log: the state of each key, and the newest record's time."""
    options = StreamsOptions.__dataclass_fields__
    ahead_ms, behind_ms = options["wrong_clock_ahead_ms"].default, options["wrong_clock_behind_ms"].default
    deltas: dict[str, Delta] = {}
    newest_ms = 0
    fold: Callable[..., None]
    for topic, fold in ((OUTCOMES, fold_outcome), (TELEMETRY, fold_telemetry)):
        for record in await records_of(log.bootstrap, topic.name):
            with contextlib.suppress(Refused):
                for event in decode_events(topic, record.headers, record.value).events:
                    if -behind_ms <= event.at_ms - record.timestamp <= ahead_ms:
                        fold(deltas, event, record.timestamp)
                newest_ms = max(newest_ms, record.timestamp)
    states: dict[str, State] = {}
    for key, delta in deltas.items():
        if unique in key:
            states[key] = new_state()
            add(states[key].closed, delta)
    return states, newest_ms


async def stored(log: Log, app_id: str, unique: str) -> dict[str, State]:
    """What the changelogs hold: the newest value of each key."""
    found: dict[str, State] = {}
    for table in TABLES:
        for record in await records_of(log.bootstrap, f"{app_id}-{table}-changelog"):
            key = record.key.decode()
            if record.value is None:
                found.pop(key, None)
            elif unique in key and not key.startswith(UPTO):  # a worker takes other tests' events too
                found[key] = decode_state(record.value)
    return found


def plain(row: Any, *left_out: str) -> dict[str, Any]:
    """A row as it is on the wire, without some fields."""
    fields: dict[str, Any] = msgspec.json.decode(encode(row))
    return {name: value for name, value in fields.items() if name not in left_out}


def row_differences(log: Log, states: dict[str, State], endpoints: list[EndpointRow]) -> list[str]:
    """Which published rows are not those of the reference at their own time."""
    wrong = []
    for endpoint in endpoints:
        row = log.row(INSTANCES, endpoint.instance)
        if row is None:
            wrong.append(f"{endpoint.instance}: no row")
            continue
        key, stamp = f"i|{endpoint.pools[0]}|{endpoint.instance}", Stamp(row.as_of_ms, row.epoch, row.version)
        want = instance_row(endpoint, live_of(states, key), stamp)
        if plain(row, *REPAIRED) != plain(want, *REPAIRED):
            wrong.append(f"{endpoint.instance}: {plain(row, *REPAIRED)} instead of {plain(want, *REPAIRED)}")
    for key in states:
        parsed = parse_key(key)
        if parsed.kind == "r":
            row = log.row(REGIONS, f"{parsed.name}|{parsed.pool}")
            if row is None:
                wrong.append(f"{key}: no row")
                continue
            stamp = Stamp(row.as_of_ms, row.epoch, row.version)
            want = region_row(parsed.name, parsed.pool, members_of([]), live_of(states, key), None, stamp)
            known = sum((e.region, e.pools[0]) == (parsed.name, parsed.pool) for e in endpoints)
            if plain(row)["windows"] != plain(want)["windows"] or row.known_endpoints != known:
                wrong.append(f"{key}: {plain(row)['windows']} instead of {plain(want)['windows']}")
    return wrong


def table_differences(
    got: dict[str, State], want: dict[str, State], endpoints: list[EndpointRow], newest_ms: int
) -> list[str]:
    """Which keys of the tables don't come to the reference's rows, now and as time goes by."""
    by_name = {endpoint.instance: endpoint for endpoint in endpoints}
    wrong = [f"{key}: in one only" for key in got.keys() ^ want.keys()]
    for key in got.keys() & want.keys():
        parsed = parse_key(key)
        for later_ms in (0, 1_000, 4_000, 45_000, 150_000):
            stamp = Stamp(newest_ms + later_ms, 1, 1)
            rows = []
            for states in (got, want):
                live = live_of(states, key)
                if parsed.kind == "i":
                    row = instance_row(by_name[parsed.name], live, stamp)
                else:
                    grants = Grants(None, 0.0, 0.0)
                    row = region_row(parsed.name, parsed.pool, members_of([]), live, grants, stamp)
                rows.append(plain(row))
            if rows[0] != rows[1]:
                wrong.append(f"{key} at +{later_ms}: {rows[0]} instead of {rows[1]}")
    return wrong


def live_of(states: dict[str, State], key: str) -> Live | None:
    state = states.get(key)
    return Live(state) if state is not None else None
