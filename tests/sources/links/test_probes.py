"""Probes of real HTTP servers: what answers, what hangs, what is gone, and the list that is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
from aiohttp import web

from infra.ports import free_port
from schemas.network import LinkProbe
from schemas.topics import LINKS, Topic
from sources.links.config import LinkConfig
from sources.links.prober import open_session, probe
from sources.links.service import LinkSource
from transport.producer import EventProducer


class Router:
    """A router's health page; ``behaviour`` says how it answers."""

    def __init__(self) -> None:
        self.behaviour = "well"
        self.peers: set[object] = set()
        self.asked = 0

    async def health(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        if self.behaviour == "hangs":
            await asyncio.sleep(60)
        if self.behaviour == "large":
            return web.Response(body=b"x" * 1_000_000)
        if self.behaviour == "elsewhere":
            raise web.HTTPFound("http://127.0.0.1:1/")
        return web.json_response({}, status=503 if self.behaviour == "unwell" else 200)


@pytest.fixture
async def router() -> AsyncIterator[tuple[Router, str]]:
    made = Router()
    app = web.Application()
    app.add_routes([web.get("/healthz", made.health)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("behaviour", ["well", "unwell", "elsewhere"])
async def test_any_answer_measures_on_a_kept_connection(router: tuple[Router, str], behaviour: str) -> None:
    one, url = router
    one.behaviour = behaviour
    async with open_session() as session:
        for _ in range(3):
            attempt = await probe(session, url, 5.0)
            assert attempt.answered
            assert attempt.rtt_ms is not None
            assert 0.0 < attempt.rtt_ms < 5000.0
    assert len(one.peers) == 1
    assert one.asked == 4, "two for the first probe, which had to connect"


async def test_a_page_too_large_is_an_answer_that_is_not_read() -> None:
    one = Router()
    one.behaviour = "large"
    app = web.Application()
    app.add_routes([web.get("/healthz", one.health)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with open_session() as session:
            attempt = await probe(session, f"http://127.0.0.1:{runner.addresses[0][1]}/", 5.0)
            assert attempt.answered
    finally:
        await runner.cleanup()


async def test_no_answer_is_a_loss(router: tuple[Router, str]) -> None:
    one, url = router
    async with open_session() as session:
        assert not (await probe(session, f"http://127.0.0.1:{free_port()}", 5.0)).answered
        assert not (await probe(session, "http://no-such-host.invalid", 5.0)).answered
        one.behaviour = "hangs"
        lost = await probe(session, url, 0.1)
        assert (lost.answered, lost.rtt_ms) == (False, None)
        one.behaviour = "well"
        assert (await probe(session, url, 5.0)).answered


class Events:
    """Takes events as the producer would."""

    def __init__(self) -> None:
        self.all: list[LinkProbe] = []

    def emit(self, topic: Topic, event: LinkProbe) -> None:
        assert topic is LINKS
        self.all.append(event)

    def last(self, to_region: str) -> LinkProbe | None:
        return next((event for event in reversed(self.all) if event.to_region == to_region), None)


async def _until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within 20 s: {what}")


async def test_links_are_probed_as_described_and_as_routers_come_and_go(router: tuple[Router, str]) -> None:
    _, url = router
    events, known = Events(), {"asia": [url]}
    source = LinkSource(lambda region: known.get(region, []))
    await source.start(cast(EventProducer, events))

    def link(to_region: str, *urls: str) -> LinkConfig:
        return LinkConfig(
            from_region="eu",
            to_region=to_region,
            urls=list(urls),
            interval_ms=100,
            timeout_s=1.0,
            egress_usd_per_gib=0.02,
        )

    def rtt(to_region: str) -> float | None:
        event = events.last(to_region)
        return None if event is None else event.rtt_ms.value

    def loss(to_region: str) -> float | None:
        event = events.last(to_region)
        return None if event is None else event.loss_ratio.value

    try:
        await source.apply([link("us", url), link("asia"), link("dead", f"http://127.0.0.1:{free_port()}")])
        await _until(lambda: rtt("us") and rtt("asia") and loss("dead") == 1.0, "each link told")
        assert rtt("dead") is None
        assert loss("us") == 0.0
        told = events.last("us")
        assert told is not None
        assert (told.from_region, told.egress_usd_per_gib) == ("eu", 0.02)
        known.clear()
        await _until(lambda: rtt("asia") is None, "a region without routers is unknown")
        await source.apply([link("asia")])
        events.all.clear()
        await _until(lambda: len(events.all) >= 3, "the other link still told")
        assert {event.to_region for event in events.all} == {"asia"}
    finally:
        await source.stop()
