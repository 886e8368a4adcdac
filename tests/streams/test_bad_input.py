"""Bad records end in fleet.dead with reason and origin, and the stream goes on; too many stop it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from infra.ports import free_port
from schemas.codec import to_json
from schemas.outcomes import Outcome
from schemas.topics import DEAD, DECISIONS, INSTANCES, OUTCOMES, TELEMETRY
from tests.streams.fleet import (
    Log,
    Worker,
    a_decision,
    a_scrape,
    an_endpoint,
    an_outcome,
    eventually,
)
from transport.clock import now_ms


@pytest.mark.kafka
async def test_bad_records_are_put_aside_with_reason_and_origin(
    log: Log, unique: str, make_worker: Callable[..., Worker]
) -> None:
    pool, instance = f"m-{unique}@v1", f"i-{unique}"
    endpoint = an_endpoint(instance, pool)
    await log.register([endpoint])
    await log.send(TELEMETRY, [a_scrape(endpoint)], f"source-{unique}")
    good = to_json(an_outcome("d", pool))
    undecided = to_json(a_decision("d", pool)).replace(b"dispatched", b"maybe")
    outcome, decision = (("schema", b"outcome/1"),), (("schema", b"decision/1"),)
    cases = [
        (OUTCOMES, outcome, b"{not json", "unparseable"),
        (OUTCOMES, outcome, None, "unparseable"),
        (OUTCOMES, (("schema", b"outcome/99"),), good, "unknown_schema"),
        (OUTCOMES, (), good, "unknown_schema"),
        (OUTCOMES, outcome, good.replace(b'"ttft_ms":100.0', b'"ttft_ms":-5'), "impossible_value"),
        (OUTCOMES, outcome, good.replace(b'"ttft_ms":100.0', b'"ttft_ms":NaN'), "unparseable"),
        (OUTCOMES, outcome, to_json(an_outcome("d", pool, at_ms=now_ms() + 600_000)), "wrong_clock"),
        (OUTCOMES, outcome, to_json(an_outcome("d", pool, at_ms=now_ms() - 90_000_000)), "wrong_clock"),
        (DECISIONS, decision, undecided, "impossible_value"),
        (DECISIONS, decision, b"\xff\xfe", "unparseable"),
    ]
    expected = {}
    for topic, headers, value, kind in cases:
        sent = await log.producer.send_and_wait(topic.name, value, key=unique.encode(), headers=list(headers))
        expected[topic.name, sent.partition, sent.offset] = kind
    await log.send(OUTCOMES, [an_outcome(f"d-{unique}", pool, instance=instance)], unique)
    worker = make_worker()
    worker.start()
    await worker.ready()

    async def letters() -> dict[tuple[str, int, int], str]:
        return {(d.origin_topic, d.origin_partition, d.origin_offset): d.kind for d in await log.events(DEAD)}

    async def all_there() -> bool:
        return expected.items() <= (await letters()).items()

    await eventually(all_there, worker.tail)
    for letter in await log.events(DEAD):
        assert letter.reason
        assert unique not in letter.reason
    attempts = await eventually(
        lambda: (row := log.row(INSTANCES, instance)) is not None and row.windows[2].attempts, worker.tail
    )
    assert attempts == 1
    assert (await worker.get("/healthz"))[0] == 200
    assert worker.stop() == 0


@pytest.mark.kafka
async def test_events_of_a_sound_clock_in_the_same_envelope_are_used(
    log: Log, unique: str, make_worker: Callable[..., Worker]
) -> None:
    pool, instance = f"m-{unique}@v1", f"i-{unique}"
    await log.register([an_endpoint(instance, pool)])
    both: list[Outcome] = [
        an_outcome(f"d-{unique}-0", pool, instance=instance, at_ms=now_ms() + 900_000),
        an_outcome(f"d-{unique}-1", pool, instance=instance),
    ]
    await log.send(OUTCOMES, both, unique)
    worker = make_worker()
    worker.start()
    row = await eventually(
        lambda: (row := log.row(INSTANCES, instance)) is not None and row.windows[2].attempts and row,
        worker.tail,
    )
    assert row.windows[2].attempts == 1


def test_an_unreachable_broker_is_one_sentence() -> None:
    port = free_port()
    command = [sys.executable, "-m", "tokenfleet", "streams", "--kafka", f"127.0.0.1:{port}", "--port", "0"]
    command += ["--broker-timeout-s", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"No Kafka broker answered at 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_taken_port_is_one_sentence() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = [sys.executable, "-m", "tokenfleet", "streams", "--port", str(port)]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    server.close()
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
