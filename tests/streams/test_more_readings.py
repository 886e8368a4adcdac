"""Links, GPUs, latencies, decisions and KV events on a real log, and what the rows say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.caches import KvEvent
from schemas.gpus import GpuSample
from schemas.network import LinkProbe
from schemas.prefixes import PrefixKey
from schemas.readings import Reading
from schemas.telemetry import LatencyTotals, Telemetry
from schemas.topics import DECISIONS, ENDPOINTS, GPUS, INSTANCES, KV, LINKS, OUTCOMES, REGIONS, TELEMETRY
from tests.streams.fleet import Log, Worker, a_decision, a_scrape, an_endpoint, an_outcome, eventually
from transport.clock import now_ms

pytestmark = pytest.mark.kafka


def scrape(endpoint: Any, at_ms: int, count: int) -> Telemetry:
    told = [LatencyTotals(name="ttft", bounds_ms=[100.0, 200.0], counts=[0, count, 0], sum_ms=0.0)]
    return a_scrape(endpoint).model_copy(update={"at_ms": at_ms, "latencies": told})


async def test_rows_hold_what_every_topic_tells(
    log: Log, unique: str, make_worker: Callable[..., Worker]
) -> None:
    pool, instance, source = f"m-{unique}@v1", f"i-{unique}", f"source-{unique}"
    region, host = f"eu-{unique}", f"h-{unique}"
    endpoint = an_endpoint(instance, pool, region, host=host)
    await log.put(ENDPOINTS, endpoint, pool)
    now = now_ms()
    link = LinkProbe(
        from_region=region,
        to_region="us",
        at_ms=now,
        rtt_ms=Reading(value=80.0, quality="fresh", age_ms=0.0),
        loss_ratio=Reading(),
        bandwidth_mbit_per_s=Reading(),
        egress_usd_per_gib=0.02,
        valid_for_ms=60_000.0,
    )
    await log.send(LINKS, [link], source)
    lost = GpuSample(host=host, gpu=f"GPU-{unique}", index=0, at_ms=now, state="lost", valid_for_ms=6e4)
    await log.send(GPUS, [lost], source)
    await log.send(TELEMETRY, [scrape(endpoint, now - 11_000, 0), scrape(endpoint, now, 10)], source)
    decided = [a_decision(f"d-{unique}-{n}", pool, instance=instance, instance_boot="b0") for n in range(3)]
    await log.send(DECISIONS, decided, f"router-{unique}")
    first = decided[0]
    ended = an_outcome(
        first.decision_id,
        pool,
        instance=instance,
        instance_boot="b0",
        deadline_at_ms=first.deadline_at_ms,
        work_tokens=first.work_tokens,
        region=region,
    )
    await log.send(OUTCOMES, [ended], f"router-{unique}")
    blocks = PrefixKey(scheme="tok:t:512", salt_id="s", blocks=["0" * 16] * 60)
    gone = KvEvent(
        instance=instance,
        boot="b0",
        pool=pool,
        at_ms=now - 15_000,
        engine_seq=1,
        kind="removed",
        prefix=blocks,
    )
    await log.send(KV, [gone], source)
    worker = make_worker()
    worker.start()

    def row() -> Any:
        found = log.row(INSTANCES, instance)
        return found if found is not None and found.requests_in_flight.value == 2.0 else None

    found = await eventually(row, worker.tail)
    assert found.work_tokens_in_flight.value == pytest.approx(2 * first.work_tokens)
    assert found.gpu_health.state == "lost"
    assert found.engine_windows[0].ttft_ms.p50 == 150.0
    assert found.kv_events_at_ms == now - 15_000
    assert found.kv_evicted_blocks_per_s.value == 1.0
    place = await eventually(
        lambda: (r := log.row(REGIONS, f"{region}|{pool}")) is not None and r.links and r, worker.tail
    )
    to_us = next(link for link in place.links if link.to_region == "us")
    assert (to_us.rtt_ms.value, to_us.egress_usd_per_gib.value) == (80.0, 0.02)
    assert to_us.loss_ratio.quality == "unknown"
