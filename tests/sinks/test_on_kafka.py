"""The sink process on real Kafka: killed in the middle it stores each row once; dead letters; the books."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from infra.ports import free_port
from schemas.codec import envelope_headers, headers_for
from schemas.outcomes import Outcome
from schemas.topics import DEAD, OUTCOMES, TELEMETRY
from sinks import dead
from sinks.books import log_ends, read_log_intents, reconcile, stored_books
from tests.sinks.events import envelope, outcome, telemetry
from transport.admin import ensure_topics
from transport.clock import now_ms
from transport.producer import EventProducer, start_producer

pytestmark = pytest.mark.kafka
RECORDS, EVENTS = 300, 10


class Sink:
    """A sink process to be killed and started again on the same data."""

    def __init__(self, bootstrap: str, data: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = ["--kafka", bootstrap, "--data", str(data), "--port", str(self.port)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tokenfleet", "sink", *self._arguments, stderr=asyncio.subprocess.DEVNULL
        )
        await _until(self.ready)

    async def ready(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/readyz") as answer:
            return answer.status == 200

    async def ask(self, sql: str) -> str:
        async with aiohttp.ClientSession() as session, session.post(self.url, data=sql) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text.strip()

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 20)


async def _until(check: Callable[[], Any], timeout_s: float = 40.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            if await check():
                return
        assert asyncio.get_running_loop().time() < deadline, "waited too long"
        await asyncio.sleep(0.1)


@pytest.fixture
async def sink(kafka: Any, tmp_path: Path) -> AsyncIterator[Sink]:
    await ensure_topics(kafka.bootstrap)
    process = Sink(kafka.bootstrap, tmp_path / "sink")
    yield process
    if process._process is not None and process._process.returncode is None:
        await process.end(signal.SIGKILL)


async def test_killed_in_the_middle_each_row_is_stored_once(kafka: Any, sink: Sink) -> None:
    tag = f"sink-{secrets.token_hex(4)}"
    since, began_ms = await log_ends(kafka.bootstrap), now_ms()
    producer = await start_producer(kafka.bootstrap)
    events = EventProducer(producer, producer_id=tag, boot="b1", linger_ms=0)
    mine = f"SELECT count(), uniqExact(decision_id) FROM outcomes_raw WHERE _producer = '{tag}'"
    stored_some = asyncio.Event()

    async def produce() -> None:
        for number in range(RECORDS):
            # Days alternate: blocks must be cut, and none may step over another's rows.
            at_ms = began_ms + 60_000 if number % 3 else began_ms - 20 * 3_600_000
            batch = [
                outcome(f"{tag}-{number}-{index}", f"{tag}-i{number}-{index}", at_ms=at_ms + index)
                for index in range(EVENTS)
            ]
            for event in batch[:-1]:
                events.emit(OUTCOMES, event)
            await events.emit_acked(OUTCOMES, batch[-1])
            await events.emit_acked(TELEMETRY, telemetry(tag, began_ms + number * 1000, float(number)))
            await asyncio.sleep(0.01 if stored_some.is_set() else 0.03)
        await events.close()

    await sink.start()
    producing = asyncio.create_task(produce())
    for _ in range(2):
        before = await sink.ask(mine)

        async def grown(before: str = before) -> bool:
            return await sink.ask(mine) != before

        await _until(grown)
        await sink.end(signal.SIGKILL)
        stored_some.set()
        await sink.start()
    await asyncio.wait_for(producing, 60)
    total = RECORDS * EVENTS

    async def all_there() -> bool:
        return int((await sink.ask(mine)).split()[0]) >= total

    await _until(all_there)
    assert await sink.ask(mine) == f"{total}\t{total}"
    rollup = f"SELECT sum(samples) FROM telemetry_minutes WHERE instance = '{tag}'"
    raw = f"SELECT count() FROM telemetry_raw WHERE instance = '{tag}'"

    async def telemetry_there() -> bool:
        return await sink.ask(raw) == str(RECORDS)

    await _until(telemetry_there)
    assert await sink.ask(rollup) == str(RECORDS)
    log = await read_log_intents(kafka.bootstrap, since)
    stored = await stored_books(sink.url, from_ms=began_ms - 21 * 3_600_000)
    for side in (log, stored):
        side.decisions = {key: book for key, book in side.decisions.items() if key.startswith(tag)}
    ledger = [f"{tag}-i{number}-{index}" for number in range(RECORDS) for index in range(EVENTS)]
    books = reconcile(ledger, log, stored)
    assert books.agree, books
    assert (books.intents, books.stored) == (total, total)
    assert await sink.end(signal.SIGTERM) == 0
    await producer.stop()


async def test_bad_records_are_put_aside_listed_and_replayed(kafka: Any, sink: Sink) -> None:
    tag = f"bad-{secrets.token_hex(4)}"
    producer = await start_producer(kafka.bootstrap)
    await sink.start()
    bad = await producer.send_and_wait(
        OUTCOMES.name, b'{"broken', key=tag.encode(), partition=0, headers=headers_for(Outcome)
    )
    good = envelope(OUTCOMES, [outcome(f"{tag}-d", f"{tag}-i")], offset=0, producer=tag)
    fine = await producer.send_and_wait(
        OUTCOMES.name, good.value, key=tag.encode(), partition=0, headers=envelope_headers(Outcome)
    )

    async def stored() -> bool:
        here = f"origin_topic = 'fleet.outcomes' AND origin_partition = 0 AND origin_offset = {bad.offset}"
        letters = f"SELECT count() FROM dead_letters WHERE {here}"
        rows = f"SELECT count() FROM outcomes_raw WHERE _producer = '{tag}'"
        return (await sink.ask(letters), await sink.ask(rows)) == ("1", "1")

    await _until(stored)
    (letter,) = [
        item
        for item in await dead.list_letters(kafka.bootstrap)
        if (item.origin_topic, item.origin_partition, item.origin_offset) == (OUTCOMES.name, 0, bad.offset)
    ]
    assert (letter.kind, letter.component, letter.size_bytes, letter.times) == ("unparseable", "sink", 8, 1)
    sent = await dead.replay(kafka.bootstrap, OUTCOMES.name, 0, bad.offset)
    assert (sent.topic, sent.partition) == (OUTCOMES.name, 0)
    assert sent.offset > fine.offset

    async def put_aside_again() -> bool:
        letters = await dead.list_letters(kafka.bootstrap)
        return any(item.origin_offset == sent.offset and item.sha256 == letter.sha256 for item in letters)

    await _until(put_aside_again)
    with pytest.raises(dead.ReplayRefused, match="No dead letter names"):
        await dead.replay(kafka.bootstrap, OUTCOMES.name, 0, fine.offset)
    with pytest.raises(dead.ReplayRefused, match="no topic"):
        await dead.replay(kafka.bootstrap, "fleet.moon", 0, 0)
    await producer.stop()


async def test_a_record_that_is_gone_is_not_replayed(kafka: Any) -> None:
    from schemas.codec import to_json
    from schemas.operations import DeadLetter

    letter = DeadLetter(
        origin_topic=OUTCOMES.name,
        origin_partition=1,
        origin_offset=2**40,
        at_ms=now_ms(),
        component="sink",
        kind="unparseable",
        reason="A test.",
        size_bytes=1,
        sha256="0" * 64,
    )
    await ensure_topics(kafka.bootstrap)
    producer = await start_producer(kafka.bootstrap)
    await producer.send_and_wait(DEAD.name, to_json(letter), headers=headers_for(letter))
    await producer.stop()
    with pytest.raises(dead.ReplayRefused, match="is gone"):
        await dead.replay(kafka.bootstrap, OUTCOMES.name, 1, 2**40)


def test_commands_say_what_is_wrong(kafka: Any, tmp_path: Path) -> None:
    from tokenfleet.cli import app

    runner = CliRunner()
    arguments = [
        "--kafka",
        kafka.bootstrap,
        "--topic",
        OUTCOMES.name,
        "--partition",
        "0",
        "--offset",
        str(2**41),
    ]
    result = runner.invoke(app, ["dead", "replay", *arguments])
    assert result.exit_code == 1
    assert "error: No dead letter names" in result.stderr
    result = runner.invoke(
        app, ["dead", "list", "--kafka", kafka.bootstrap, "--json", str(tmp_path / "d.json")]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "d.json").read_text().startswith("[")
