"""Quotas and leases on the log: within the cap, with the owner's epoch, and none where there is no cap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from schemas.policy import Cap, PolicyRow, ServiceClass
from schemas.routers import Demand, RouterRow
from schemas.topics import LEASES, POLICY, QUOTAS, ROUTERS, TELEMETRY
from tests.streams.fleet import Log, Worker, a_scrape, an_endpoint, eventually
from transport.clock import now_ms


def a_policy(pool: str, shares: dict[str, float]) -> PolicyRow:
    now = now_ms()
    return PolicyRow(
        as_of_ms=now,
        valid_for_ms=0.0,
        epoch=now,
        version=1,
        classes=[ServiceClass(name=name, share=share) for name, share in shares.items()],
        caps=[Cap(pool=pool, work_tokens_per_endpoint=1_000.0)],
    )


def a_router(unique: str, pool: str, version: int, lease: Any | None) -> RouterRow:
    now = now_ms()
    wish = Demand(
        region="eu",
        pool=pool,
        service_class="chat",
        in_flight_work_tokens=0.0,
        wanted_work_tokens=500.0,
        held_epoch=lease.epoch if lease is not None else None,
        held_version=lease.version if lease is not None else None,
    )
    return RouterRow(
        as_of_ms=now,
        valid_for_ms=3_000.0,
        epoch=1_796_000_000_000,
        version=version,
        router=f"router-{unique}",
        boot="rb",
        boot_started_at_ms=now - 1_000,
        entry_region="edge",
        url="http://127.0.0.1:1",
        demands=[wish],
    )


@pytest.mark.kafka
async def test_leases_stay_within_the_cap_also_over_a_restart(
    log: Log, unique: str, make_worker: Callable[..., Worker]
) -> None:
    capped, free = f"capped-{unique}@v1", f"free-{unique}@v1"
    endpoints = [an_endpoint(f"c{n}-{unique}", capped) for n in range(2)] + [an_endpoint(f"f-{unique}", free)]
    await log.register(endpoints)
    await log.put(POLICY, a_policy(capped, {"chat": 0.75, "batch": 0.25}), "fleet")
    worker = make_worker()
    worker.start()
    try:
        version = 0

        async def beat() -> None:
            nonlocal version
            version += 1
            held = log.row(LEASES, f"eu|{capped}|chat|router-{unique}")
            await log.put(ROUTERS, a_router(unique, capped, version, held), f"router-{unique}")
            await log.send(TELEMETRY, [a_scrape(endpoint) for endpoint in endpoints], f"source-{unique}")

        async def granted(epoch_above: int) -> bool:
            await beat()
            lease = log.row(LEASES, f"eu|{capped}|chat|router-{unique}")
            quota = log.row(QUOTAS, f"eu|{capped}")
            return bool(
                lease is not None
                and lease.epoch > epoch_above
                and lease.work_tokens >= 500.0
                and quota.cap_work_tokens == 2_000.0
            )

        await eventually(lambda: granted(-1), worker.tail)
        lease, quota = log.row(LEASES, f"eu|{capped}|chat|router-{unique}"), log.row(QUOTAS, f"eu|{capped}")
        assert (lease.holder, lease.holder_boot, lease.duration_ms) == (f"router-{unique}", "rb", 10_000.0)
        assert quota.exposed_work_tokens <= 2_000.0
        assert {c.service_class: c.work_tokens for c in quota.classes} == {"chat": 1_500.0, "batch": 500.0}
        assert log.row(QUOTAS, f"eu|{free}").cap_work_tokens is None
        assert log.row(LEASES, f"eu|{free}|chat|router-{unique}") is None

        first = lease.epoch
        worker.kill()
        worker.start()
        await eventually(lambda: granted(first), worker.tail)
        for _ in range(10):
            await beat()
            assert log.row(QUOTAS, f"eu|{capped}").exposed_work_tokens <= 2_000.0
            await asyncio.sleep(0.1)
    finally:
        await log.producer.send_and_wait(POLICY.name, None, key=b"fleet", partition=0)
