"""A decision without an outcome gets exactly one; one that has its own never gets another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from schemas.topics import DECISIONS, OUTCOMES
from tests.streams.fleet import Log, Worker, a_decision, an_outcome, eventually
from transport.clock import now_ms


@pytest.mark.kafka
async def test_lost_exactly_once_and_only_what_is_lost(
    log: Log, unique: str, make_worker: Callable[..., Worker]
) -> None:
    pool, router = f"m-{unique}@v1", f"router-{unique}"
    orphans = [f"orphan-{unique}-{n}" for n in range(5)]
    ended = [f"ended-{unique}-{n}" for n in range(5)]
    early = [f"early-{unique}-{n}" for n in range(5)]
    soon = now_ms() + 1_000
    # The outcome is there before the decision: it closes it all the same.
    await log.send(OUTCOMES, [an_outcome(d, pool, router=router) for d in early], router)
    worker = make_worker("streams-0", "--lost-after-ms", "1000")
    worker.start()
    await worker.ready()
    decisions = [a_decision(d, pool, router=router, deadline_at_ms=soon) for d in orphans + ended + early]
    await log.send(DECISIONS, decisions, router)
    await log.send(OUTCOMES, [an_outcome(d, pool, router=router) for d in ended], router)

    async def outcomes() -> list:
        return [o for o in await log.events(OUTCOMES) if unique in o.decision_id]

    async def all_closed() -> bool:
        return {o.decision_id for o in await outcomes()} >= {*orphans, *ended, *early}

    await eventually(all_closed, worker.tail)
    worker.kill()  # it may not have seen its own outcomes come back: the next one must
    worker.start()
    await worker.ready()
    await asyncio.sleep(6)  # past the settling time, in which a second closing would be due
    found = await outcomes()
    assert Counter(o.decision_id for o in found) == Counter([*orphans, *ended, *early])
    lost = [o for o in found if o.cause == "lost"]
    assert {o.decision_id for o in lost} == set(orphans)
    assert all(o.inferred and o.rule and o.router == router and o.ttft_ms is None for o in lost)
    assert await worker.metric('tokenfleet_streams_table_keys{table="open_decisions"}') == 0
