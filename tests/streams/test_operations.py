"""The procedures of docs/operations/streams.md: another changelog format, more partitions, more workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from aiokafka.admin import NewPartitions

from schemas.readings import EngineGauges, Reading
from schemas.topics import ALERTS, INSTANCES, OUTCOMES, ROLLUPS, TELEMETRY
from streams.capacity import TABLES
from tests.streams.fleet import Log, Worker, a_scrape, an_endpoint, an_outcome, eventually, register
from tests.streams.test_exactness import Reference, produce, start_fleet, two_pools
from transport.admin import connect_admin

MakeWorker = Callable[..., Worker]


@pytest.mark.kafka
async def test_tables_of_a_new_format_are_built_from_the_rollups(
    log: Log, unique: str, make_worker: MakeWorker
) -> None:
    """A changelog that is not there is what a new format's first start finds: its name holds the format."""
    reference, instances = Reference(), two_pools(unique, 9)
    await start_fleet(log, instances)
    worker = make_worker()
    worker.start()
    await produce(log, random.Random(5), unique, instances, reference, 20)
    await eventually(lambda: not reference.differences(log), lambda: reference.differences(log)[:3])
    await eventually(lambda: log.settled(f"t{unique}", ROLLUPS), worker.tail)
    assert worker.stop() == 0
    before = {name: log.row(INSTANCES, name).epoch for name in instances}
    admin = await connect_admin(log.bootstrap)
    try:
        changelogs = {f"t{unique}-{table}-changelog" for table in TABLES}
        await admin.delete_topics(list(changelogs))

        async def gone() -> bool:
            return not changelogs & set(await admin.list_topics())

        await eventually(gone)
    finally:
        await admin.close()
    worker.start()
    await worker.ready()
    await eventually(
        lambda: (
            all(log.row(INSTANCES, name).epoch > before[name] for name in instances)
            and not reference.differences(log)
        ),
        lambda: reference.differences(log)[:3],
    )
    assert "rollups_rewound" in worker.tail() or await worker.metric(
        "tokenfleet_streams_rollups_applied_total"
    )


@pytest.mark.kafka
async def test_a_raw_topic_may_get_more_partitions_while_workers_run(
    log: Log, unique: str, make_worker: MakeWorker, fresh_kafka: object
) -> None:
    """On a broker of its own, since the count of a shared topic can't be taken back."""
    from transport.admin import ensure_topics
    from transport.producer import start_producer
    from transport.table_reader import TableReader

    bootstrap = fresh_kafka.bootstrap  # type: ignore[attr-defined]
    await ensure_topics(bootstrap)
    producer = await start_producer(bootstrap)
    reader = TableReader(bootstrap, [INSTANCES])
    await reader.start()
    await reader.wait_caught_up(20)
    own = Log(bootstrap, producer, reader)
    worker = make_worker("streams-0", "--kafka", bootstrap, "--no-closing")
    try:
        pool, instance = f"m-{unique}@v1", f"i-{unique}"
        await register(own, [an_endpoint(instance, pool)])
        worker.start()
        await worker.ready()
        await own.send(OUTCOMES, [an_outcome("d0", pool, instance=instance)], "r")
        admin = await connect_admin(bootstrap)
        await admin.create_partitions({OUTCOMES.name: NewPartitions(total_count=6)})
        await admin.close()

        async def sent() -> bool:
            found = await producer.partitions_for(OUTCOMES.name)
            if len(found) < 6:
                await producer.client.force_metadata_update()
            return len(found) == 6

        await eventually(sent)
        for number in range(40):
            await own.send(OUTCOMES, [an_outcome(f"d{number}", pool, instance=instance)], f"r-{number}")

        def all_counted() -> bool:
            row = own.row(INSTANCES, instance)
            return row is not None and row.windows[2].attempts == 41

        await eventually(all_counted, worker.tail)
    finally:
        worker.kill()
        await reader.stop()
        await producer.stop()


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
    await register(log, [endpoint])
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
