"""Engines for the source benchmark: a process that answers on many ports with a vLLM page that moves.

Started by ``bench.source``; prints its ports as one JSON line. The page is the emulator's (vLLM's own names,
types and buckets) and the per-route families of vLLM's web server, some 49 kB like a real one's. Pages are
made beforehand and change four times a second, so that what is measured is the reader, not the writer.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from sim.engine import EngineScheduler, FinishedRequest, StepResult
from sim.engines.metrics import EngineMetrics
from sim.engines.spec import InstanceSpec

PAGES = 240
PAGE_S = 0.25
PAGE_BYTES = 49_000
REQUESTS_A_PAGE = 4
STARTED_AT_S = 1_795_980_983.71


def make_pages(count: int, size: int = PAGE_BYTES) -> list[bytes]:
    """Pages of one engine's life, one after the other: counters and histograms only ever rise."""
    rng = random.Random(6)
    spec = InstanceSpec(instance="bench-0", model="tiny")
    scheduler = EngineScheduler(spec.step_params, block_tokens=spec.block_tokens)
    engine = EngineMetrics(spec, scheduler, STARTED_AT_S)
    web = CollectorRegistry()
    requests = Counter("http_requests", "Requests by route.", ["handler", "method", "status"], registry=web)
    seconds = Histogram("http_request_duration_seconds", "Latency.", ["handler", "method"], registry=web)
    pages = []
    routes = 0
    while len(engine.exposition()) + len(generate_latest(web)) < size:
        requests.labels(f"/v1/route/{routes}", "POST", "2xx").inc()
        seconds.labels(f"/v1/route/{routes}", "POST").observe(0.1)
        routes += 1
    for _ in range(count):
        for _ in range(REQUESTS_A_PAGE):
            done = _finished(rng)
            engine.observe_finished(done, 256)
            ttft_ms, gap_ms = done.first_token_ms - done.arrival_ms, rng.uniform(5.0, 60.0)
            engine.observe_step(
                StepResult(20.0, ttft_ms=[ttft_ms], inter_token_ms={gap_ms: 8}, iteration_tokens=9)
            )
            scheduler.counters.prompt_tokens += done.prompt_tokens
            scheduler.counters.generation_tokens += done.output_tokens
            scheduler.counters.finished_stop += 1
        pages.append(engine.exposition() + generate_latest(web))
    return pages


def _finished(rng: random.Random) -> FinishedRequest:
    """A request with times of its own, so that every histogram moves."""
    queue_ms, prefill_ms, decode_ms = (rng.expovariate(1.0) * mean for mean in (50.0, 200.0, 3000.0))
    return FinishedRequest(
        request_id="",
        reason="stop",
        prompt_tokens=rng.randrange(100, 4000),
        cached_tokens=64,
        output_tokens=rng.randrange(2, 400),
        preemptions=0,
        arrival_ms=0.0,
        queued_ms=0.0,
        scheduled_ms=queue_ms,
        first_token_ms=queue_ms + prefill_ms,
        finished_ms=queue_ms + prefill_ms + decode_ms,
    )


class _Answers(asyncio.Protocol):
    """Answers every request with the page of the moment; keep-alive, no parsing beyond the blank line."""

    pages: ClassVar[list[bytes]] = []
    began_s: ClassVar[float] = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._asked = b""

    def data_received(self, data: bytes) -> None:
        self._asked += data
        while b"\r\n\r\n" in self._asked:
            head, _, self._asked = self._asked.partition(b"\r\n\r\n")
            body = b""
            if b" /metrics" in head.split(b"\r\n", 1)[0]:
                place = int((time.monotonic() - self.began_s) / PAGE_S)
                body = self.pages[min(place, len(self.pages) - 1)]
            self._transport.write(  # type: ignore[attr-defined]
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n"
                b"content-length: %d\r\n\r\n" % len(body) + body
            )


async def _serve(engines: int) -> None:
    _Answers.pages = make_pages(PAGES)
    _Answers.began_s = time.monotonic()
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_Answers, "127.0.0.1", 0) for _ in range(engines)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    sys.stdout.write(json.dumps({"ports": ports, "page_bytes": len(_Answers.pages[0])}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
