"""A recovery that stands still is begun again: as a rule, and with Faust on a real Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from faust.tables.recovery import Recovery

from schemas.topics import INSTANCES, OUTCOMES
from streams.recovery_watch import STANDS_STILL_MS, RecoveryWatch
from tests.streams.fleet import Log, an_endpoint, an_outcome, eventually
from tests.streams.test_liveness import collector, hands

__all__ = ["collector", "hands"]  # fixtures


class Clock:
    """Time as the test has it."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def test_only_a_recovery_that_stands_still_is_begun_again() -> None:
    recovery = SimpleNamespace(active_offsets={0: 5, 1: 7}, signal_recovery_start=asyncio.Event())
    app = SimpleNamespace(tables=SimpleNamespace(recovery=recovery), consumer_generation_id=1)
    owner = SimpleNamespace(recovered=False, is_assigned=True)
    clock = Clock()
    watch = RecoveryWatch(app, [owner], clock)

    def after(ms: float) -> bool:
        clock.now_ms += ms
        return watch.look()

    assert not after(0.0)
    assert not after(STANDS_STILL_MS - 1)
    recovery.active_offsets[1] = 8  # one more record
    assert not after(1)
    assert not after(STANDS_STILL_MS - 1)
    app.consumer_generation_id = 2  # another rebalance
    assert not after(1)
    assert not after(STANDS_STILL_MS - 1)
    assert not recovery.signal_recovery_start.is_set()
    assert after(1)
    assert recovery.signal_recovery_start.is_set()
    assert not after(STANDS_STILL_MS - 1), "It has time to begin."
    owner.is_assigned = False  # a rebalance is under way: there is nothing to recover yet
    assert not after(STANDS_STILL_MS * 9)
    owner.is_assigned, owner.recovered = True, True
    assert not after(STANDS_STILL_MS * 9)
    owner.recovered = False
    assert not after(0.0)
    assert not after(STANDS_STILL_MS - 1)
    assert after(1)


@pytest.mark.kafka
async def test_tables_whose_changelogs_do_not_flow_are_recovered_all_the_same(
    log: Log, unique: str, hands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, instance = f"m-{unique}@v1", f"i-{unique}"
    await log.register([an_endpoint(instance, pool)])

    def attempts() -> int:
        row = log.row(INSTANCES, instance)
        return 0 if row is None or not row.windows else int(row.windows[2].attempts)

    async with hands(store_ms=500.0):
        await log.send(OUTCOMES, [an_outcome(f"d{n}", pool, instance=instance) for n in range(5)], "r")
        await eventually(lambda: attempts() == 5)
        await asyncio.sleep(1.5)  # it is stored

    real, stood_still = Recovery._seek_offsets, 0

    async def stands_still(self: Any, consumer: Any, tps: Any, offsets: Any, title: str) -> None:
        nonlocal stood_still
        await real(self, consumer, tps, offsets, title)
        if not stood_still and self.need_recovery():
            stood_still += 1
            # Past all that there is: what the fetcher of before would have had in hand.
            for tp in tps:
                await consumer.seek(tp, self.active_highwaters[tp] + 1)

    monkeypatch.setattr(Recovery, "_seek_offsets", stands_still)
    before = log.row(INSTANCES, instance).epoch
    async with hands():
        assert stood_still == 1
        await eventually(lambda: log.row(INSTANCES, instance).epoch > before)
        assert attempts() == 5
