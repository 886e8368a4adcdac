"""The procedures of docs/operations/streams.md: another changelog format, more partitions, more workers."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from unittest.mock import ANY

import pytest
from aiokafka.admin import NewPartitions

from infra.kafka.embedded import EmbeddedKafka
from minds.capacity.folds import FORMAT
from minds.rows import tombstone_headers
from schemas.grants import LeaseRow
from schemas.readings import EngineGauges, Reading
from schemas.topics import ALERTS, INSTANCES, LEASES, OUTCOMES, POOL_PARTITIONS_VARIABLE, ROLLUPS, TELEMETRY
from streams.rebuild import OF_POOLS
from tests.streams.fleet import Log, Worker, a_scrape, an_endpoint, an_outcome, eventually
from tests.streams.test_exactness import Reference, produce, start_fleet, two_pools
from transport.admin import connect_admin, ensure_topics
from transport.clock import now_ms
from transport.partitioning import partition_of
from transport.producer import start_producer
from transport.table_reader import TableReader

MakeWorker = Callable[..., Worker]


async def rebuild(bootstrap: str, app_id: str, *options: str, **environment: str) -> tuple[int, str]:
    """``tokenfleet streams rebuild``: its status, and what it said."""
    command = [sys.executable, "-m", "tokenfleet", "streams", "rebuild", "--kafka", bootstrap]
    ended = await asyncio.to_thread(
        subprocess.run,
        [*command, "--app-id", app_id, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    return ended.returncode, " ".join(ended.stderr.split())


@pytest.mark.kafka
async def test_another_changelog_format_and_back(log: Log, unique: str, make_worker: MakeWorker) -> None:
    """The steps of the page, with a version of the code that differs in its format only."""
    rng, reference, instances = random.Random(5), Reference(), two_pools(unique, 9)
    await start_fleet(log, instances)
    worker, app_id = make_worker("streams-0", "--no-closing"), f"t{unique}"

    async def right_and_settled(tag: str) -> None:
        await produce(log, rng, f"{unique}-{tag}", instances, reference, 10)
        await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])
        await eventually(lambda: log.settled(app_id, ROLLUPS), worker.tail)

    worker.start()
    await right_and_settled("old")
    assert worker.stop() == 0
    worker.of_format(FORMAT + 1)
    before = log.row(INSTANCES, next(iter(instances))).epoch
    worker.start()  # it finds that its changelogs are new
    await eventually(lambda: log.row(INSTANCES, next(iter(instances))).epoch > before, worker.tail)
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])
    await right_and_settled("new")
    assert worker.stop() == 0
    worker.of_format(FORMAT)
    assert "run tokenfleet streams rebuild" in await worker.refuses()
    assert await rebuild(log.bootstrap, app_id) == (0, ANY)
    worker.start()
    await right_and_settled("old-again")


@pytest.mark.kafka
async def test_more_partitions_of_a_raw_topic_and_of_the_pools(
    unique: str, make_worker: MakeWorker, fresh_kafka: EmbeddedKafka
) -> None:
    """On a broker of its own, since the counts of shared topics can't be taken back."""
    bootstrap, app_id = fresh_kafka.bootstrap, f"t{unique}"
    await ensure_topics(bootstrap)
    producer = await start_producer(bootstrap)
    own = Log(bootstrap, producer, TableReader(bootstrap, [INSTANCES]))
    await own.reader.start()
    await own.reader.wait_caught_up(20)
    worker = make_worker("streams-0", "--kafka", bootstrap, "--no-closing")
    pool, instance = f"m-{unique}@v1", f"i-{unique}"

    def counted(number: int) -> bool:
        row = own.row(INSTANCES, instance)
        return row is not None and row.windows[2].attempts == number

    async def partitions(name: str, wanted: int) -> bool:
        if len(await producer.partitions_for(name)) != wanted:
            await producer.client.force_metadata_update()
        return len(await producer.partitions_for(name)) == wanted

    try:
        await own.register([an_endpoint(instance, pool)])
        worker.start()
        await worker.ready()
        await own.send(OUTCOMES, [an_outcome("d0", pool, instance=instance)], "r")
        admin = await connect_admin(bootstrap)
        await admin.create_partitions({OUTCOMES.name: NewPartitions(total_count=6)})
        await admin.close()
        await eventually(lambda: partitions(OUTCOMES.name, 6))
        for number in range(40):
            await own.send(OUTCOMES, [an_outcome(f"d{number}", pool, instance=instance)], f"r-{number}")
        await eventually(lambda: counted(41), worker.tail)

        assert "Stop all streams workers first" in (await rebuild(bootstrap, app_id, "--from-raw"))[1]
        assert worker.stop() == 0
        seven = {POOL_PARTITIONS_VARIABLE: "7"}
        worker.environment = seven
        assert "has 4 partitions, but this worker is made for 7." in await worker.refuses()
        await own.put(LEASES, a_lease(pool), pool)
        await producer.flush()
        status, said = await rebuild(bootstrap, app_id, "--from-raw", **seven)
        assert (status, "Leases that were granted still run for" in said) == (1, True)
        gone = tombstone_headers(LONG_EPOCH, 2)
        place = partition_of(pool, LEASES.partitions)
        await producer.send_and_wait(
            LEASES.name, None, key=a_lease(pool).key().encode(), partition=place, headers=gone
        )
        assert await rebuild(bootstrap, app_id, "--from-raw", **seven) == (0, ANY)
        for topic in OF_POOLS:
            await eventually(lambda name=topic.name: partitions(name, 7))
        await own.reader.stop()  # as routers are started again
        own.reader = TableReader(bootstrap, [INSTANCES])
        await own.reader.start()
        worker.start()
        await eventually(lambda: counted(41), worker.tail)
        await own.send(OUTCOMES, [an_outcome("d41", pool, instance=instance)], "r")
        await eventually(lambda: counted(42), worker.tail)
    finally:
        worker.kill()
        await own.close()
        await own.reader.stop()
        await producer.stop()


LONG_EPOCH = 1_000_000


def a_lease(pool: str) -> LeaseRow:
    return LeaseRow(
        as_of_ms=now_ms(), valid_for_ms=60_000, epoch=LONG_EPOCH, version=1, region="eu", pool=pool,
        service_class="c", holder="h", holder_boot="b", request_seq=1, lease_id="l", work_tokens=1.0,
        exposed_work_tokens=1.0, duration_ms=60_000,
    )  # fmt: skip


@pytest.mark.kafka
async def test_workers_come_and_go_under_load(log: Log, unique: str, make_worker: MakeWorker) -> None:
    rng, reference, instances = random.Random(9), Reference(), two_pools(unique, 12)
    await start_fleet(log, instances)
    workers = [make_worker(f"streams-{number}", "--flush-ms", "100") for number in range(4)]
    producing = asyncio.create_task(produce(log, rng, unique, instances, reference, 250))
    for worker in workers:
        worker.start()
        await worker.ready()
    for worker in workers[:3]:
        assert worker.stop() == 0
    await producing
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])


@pytest.mark.kafka
async def test_an_instance_that_reports_the_impossible_is_quarantined(
    log: Log, unique: str, make_worker: MakeWorker
) -> None:
    pool, instance = f"m-{unique}@v1", f"i-{unique}"
    endpoint = an_endpoint(instance, pool)
    await log.register([endpoint])
    worker = make_worker()
    worker.start()
    await worker.ready()
    await log.send(TELEMETRY, [a_scrape(endpoint)], f"source-{unique}")
    await eventually(lambda: (row := log.row(INSTANCES, instance)) is not None and row.state == "ready")
    wrong = EngineGauges(kv_usage_ratio=Reading(value=1.7, quality="fresh", age_ms=0.0))

    async def aged_out() -> bool:
        scrape = a_scrape(endpoint).model_copy(update={"gauges": wrong})
        await log.send(TELEMETRY, [scrape], f"source-{unique}")
        row = log.row(INSTANCES, instance)
        return bool(row.quarantined and row.state == "unknown" and row.gauges.requests_running.value is None)

    await eventually(aged_out, worker.tail)
    alert = log.row(ALERTS, f"quarantine.{instance}")
    assert (alert.state, alert.subject) == ("firing", instance)
    assert "kv_usage_ratio is 1.7" in alert.summary
