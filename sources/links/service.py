"""Probes of all links of an agent's region: events to fleet.links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import structlog

from schemas.topics import LINKS, ROUTERS
from sources.links.config import LinkConfig
from sources.links.prober import open_session, probe
from sources.links.window import LinkWindow
from transport.clock import monotonic_ms, now_ms
from transport.producer import EventProducer
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)

MAX_ROUTERS = 4
"""Routers of a region that are probed: more say no more of the link."""


@dataclass(slots=True)
class _Probed:
    config: LinkConfig
    task: asyncio.Task[None]


class LinkSource:
    """Probes each link every interval; ``routers_of`` gives the URLs of a region's routers that are known."""

    topics = (LINKS, ROUTERS)

    def __init__(self, routers_of: Callable[[str], Sequence[str]]) -> None:
        self._routers_of = routers_of
        self._events: EventProducer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._probed: dict[tuple[str, str], _Probed] = {}

    async def start(self, events: EventProducer) -> None:
        """Take the producer; probes begin with ``apply``."""
        self._events, self._session = events, open_session()

    async def stop(self) -> None:
        """End all probes."""
        await self.apply([])
        if self._session is not None:
            await self._session.close()

    async def apply(self, links: Sequence[LinkConfig]) -> None:
        """Probe exactly these links."""
        wanted = {(link.from_region, link.to_region): link for link in links}
        ended = [key for key, one in self._probed.items() if one.config != wanted.get(key)]
        tasks = [self._probed.pop(key).task for key in ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key, config in wanted.items():
            if key not in self._probed:
                task = asyncio.create_task(self._run(config), name=f"link-{config.to_region}")
                self._probed[key] = _Probed(config, task)

    async def _run(self, config: LinkConfig) -> None:
        window, due_ms = LinkWindow(config), monotonic_ms()
        while True:
            try:
                await self._round(window)
            except Exception:
                log.exception("link_probe_failed_inside", to_region=config.to_region)
            due_ms = max(due_ms + config.interval_ms, monotonic_ms())
            await asyncio.sleep((due_ms - monotonic_ms()) / 1000)

    async def _round(self, window: LinkWindow) -> None:
        if self._session is None or self._events is None:
            raise RuntimeError("Link probes have not started.")
        session, config = self._session, window.config
        urls = sorted(config.urls or self._routers_of(config.to_region))[:MAX_ROUTERS]
        window.keep(frozenset(urls))
        attempts = await asyncio.gather(*(probe(session, url, config.timeout_s) for url in urls))
        for url, attempt in zip(urls, attempts, strict=True):
            window.note(url, attempt)
        with suppress(RuntimeError):  # the producer is closing: there is nobody to tell any more
            self._events.emit(LINKS, window.probe(now_ms()))


class RouterDirectory:
    """The routers that fleet.routers lists, by region."""

    def __init__(self, bootstrap: str) -> None:
        self._reader = TableReader(bootstrap, [ROUTERS])

    async def start(self) -> None:
        """Begin to follow the topic."""
        await self._reader.start()

    async def stop(self) -> None:
        """End."""
        await self._reader.stop()

    def routers_of(self, region: str) -> list[str]:
        """URLs of a region's routers whose last heartbeat is not too old to mean anything."""
        now = now_ms()
        return [
            seen.row.url
            for seen in self._reader.view(ROUTERS).rows()
            if seen.row.entry_region == region
            and seen.row.mode != "stopping"
            and now - seen.row.as_of_ms <= 2 * seen.row.valid_for_ms
        ]
