"""Published rows equal a single-threaded reference fold, whatever happens to the workers."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from minds.sketch import EMPTY, merged, percentiles, sketch_of_values
from schemas.outcomes import CAUSES, Outcome
from schemas.topics import INSTANCES, OUTCOMES, REGIONS, ROLLUPS, TELEMETRY
from tests.streams.fleet import Log, Worker, a_scrape, an_endpoint, an_outcome, eventually

MakeWorker = Callable[..., Worker]
FIVE_MINUTES = 2


class Reference:
    """The plain loop: figures by instance, and by region and pool."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.ttft: dict[str, bytes] = {}

    def take(self, outcome: Outcome) -> None:
        places = [f"{outcome.region or outcome.entry_region}|{outcome.pool}"]
        if outcome.instance is not None:
            places.append(outcome.instance)
        for place in places:
            counts = self.counts.setdefault(place, Counter())
            counts["attempts"] += 1
            counts[outcome.cause] += 1
            counts["good"] += outcome.within_slo
            counts["output_tokens"] += outcome.output_tokens or 0
            counts["good_tokens"] += (outcome.output_tokens or 0) * outcome.within_slo
            counts["wasted_tokens"] += outcome.wasted_tokens or 0
            if outcome.ttft_ms is not None:
                one = sketch_of_values([outcome.ttft_ms])
                self.ttft[place] = merged(self.ttft.get(place, EMPTY), one)

    def differences(self, log: Log) -> list[str]:
        """What differs, place by place; empty where every row is exactly the reference."""
        found = []
        for place, counts in self.counts.items():
            row = log.row(REGIONS if "|" in place else INSTANCES, place)
            if row is None:
                found.append(f"{place}: no row")
                continue
            window = row.windows[FIVE_MINUTES]
            names = ("attempts", "good", *CAUSES, "output_tokens", "good_tokens", "wasted_tokens")
            got = {name: getattr(window, name) for name in names if getattr(window, name)}
            want = {name: n for name, n in counts.items() if n}
            if got != want:
                found.append(f"{place}: {got} instead of {want}")
            elif (expected := percentiles(self.ttft.get(place, EMPTY))) is not None and (
                window.ttft_ms is None or window.ttft_ms.p99 != expected.p99
            ):
                found.append(f"{place}: TTFT {window.ttft_ms} instead of {expected}")
        return found


def draw(rng: random.Random, number: int, tag: str, instances: dict[str, str]) -> Outcome:
    """An outcome of any kind; instances by name to pool."""
    name = rng.choice(list(instances))
    pool, cause = instances[name], rng.choices(CAUSES, (60, 8, 8, 8, 12, 4))[0]
    if cause == "shed":
        return an_outcome(
            f"d-{tag}-{number}", pool, cause=cause, instance=None, instance_boot=None, region=None,
            within_slo=False, ttft_ms=None, tpot_ms=None, output_tokens=None, wasted_tokens=None,
        )  # fmt: skip
    return an_outcome(
        f"d-{tag}-{number}", pool, cause=cause, instance=name, within_slo=cause == "ok",
        ttft_ms=rng.lognormvariate(5, 1), output_tokens=rng.randint(1, 500),
        wasted_tokens=0 if cause == "ok" else rng.randint(0, 50),
    )  # fmt: skip


async def produce(
    log: Log, rng: random.Random, tag: str, instances: dict[str, str], reference: Reference, batches: int
) -> None:
    """Outcomes of a few producers in envelopes of several sizes, over a little time."""
    for batch in range(batches):
        outcomes = [draw(rng, batch * 1000 + n, tag, instances) for n in range(rng.randint(1, 40))]
        for outcome in outcomes:
            reference.take(outcome)
        await log.send(OUTCOMES, outcomes, f"router-{tag}-{rng.randrange(6)}")
        await asyncio.sleep(0.02)


def two_pools(unique: str, count: int) -> dict[str, str]:
    return {f"i-{unique}-{n}": f"m{n % 3}-{unique}@v1" for n in range(count)}


async def start_fleet(log: Log, instances: dict[str, str]) -> None:
    endpoints = [an_endpoint(name, pool) for name, pool in instances.items()]
    await log.register(endpoints)
    scrapes: list[Any] = [a_scrape(endpoint) for endpoint in endpoints]
    for at in range(0, len(scrapes), 50):
        await log.send(TELEMETRY, scrapes[at : at + 50], f"source-{at}")


@pytest.mark.kafka
async def test_killed_in_mid_stream_twice(log: Log, unique: str, make_worker: MakeWorker) -> None:
    rng, reference, instances = random.Random(1), Reference(), two_pools(unique, 9)
    await start_fleet(log, instances)
    worker = make_worker("streams-0", "--flush-ms", "100")
    worker.start()
    await worker.ready()
    name, epochs = next(iter(instances)), [-1]
    for round_ in range(3):
        await produce(log, rng, f"{unique}-{round_}", instances, reference, 60)
        # Each owner's epoch is higher than the one before.
        await eventually(
            lambda: (row := log.row(INSTANCES, name)) is not None and row.epoch > epochs[-1], worker.tail
        )
        epochs.append(log.row(INSTANCES, name).epoch)
        if round_ < 2:
            worker.kill()
            producing = asyncio.create_task(
                produce(log, rng, f"{unique}-{round_}-down", instances, reference, 20)
            )
            worker.start()
            await producing
            await worker.ready()
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])


@pytest.mark.kafka
async def test_tables_recover_whole_from_batched_changelogs(
    log: Log, unique: str, make_worker: MakeWorker
) -> None:
    reference, instances = Reference(), two_pools(unique, 330)
    await start_fleet(log, instances)
    worker = make_worker()
    worker.start()
    outcomes = [an_outcome(f"d-{unique}-{n}", p, instance=i) for n, (i, p) in enumerate(instances.items())]
    for at in range(0, len(outcomes), 100):
        await log.send(OUTCOMES, outcomes[at : at + 100], f"router-{unique}-{at}")
    for outcome in outcomes:
        reference.take(outcome)
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])
    before = {name: log.row(INSTANCES, name).epoch for name in instances}
    for topic, group in ((OUTCOMES, f"t{unique}-combiner"), (ROLLUPS, f"t{unique}")):
        await eventually(lambda topic=topic, group=group: log.settled(group, topic), worker.tail)
    worker.kill()
    worker.start()
    await worker.ready()
    await eventually(lambda: all(log.row(INSTANCES, name).epoch > before[name] for name in instances))
    assert reference.differences(log) == []

    async def recovered() -> bool:
        return await worker.metric('tokenfleet_streams_table_keys{table="instances"}') >= len(instances)

    await eventually(recovered, worker.tail)
    # It is the changelog that gave them back, not a second reading of the rollups.
    assert await worker.metric("tokenfleet_streams_rollups_applied_total") == 0


@pytest.mark.kafka
async def test_a_worker_that_stalls_and_comes_back_as_a_zombie_changes_nothing(
    log: Log, unique: str, make_worker: MakeWorker
) -> None:
    rng, reference, instances = random.Random(3), Reference(), two_pools(unique, 9)
    await start_fleet(log, instances)
    first, second = make_worker("streams-0"), make_worker("streams-1")
    first.start()
    await first.ready()
    await produce(log, rng, f"{unique}-a", instances, reference, 20)
    second.start()
    await produce(log, rng, f"{unique}-b", instances, reference, 20)
    await second.ready()
    first.send(signal.SIGSTOP)
    await produce(log, rng, f"{unique}-c", instances, reference, 20)
    # The group gives up on it after its session; the second worker owns all then.
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])
    first.send(signal.SIGCONT)
    await produce(log, rng, f"{unique}-d", instances, reference, 40)
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])
