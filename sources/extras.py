"""What an agent does besides scraping: KV events, GPUs, links. A part runs where the configuration names it.

Parts are loaded when first wanted, so an agent without them needs neither pyzmq nor NVML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from minds.prefix_keys import SALT_VARIABLE, BadSalt, Salt
from schemas.topics import ALERTS, GPUS, KV, LINKS, ROUTERS, Topic
from sources.boots import Boot
from sources.discovery.config import EndpointConfig, SourceConfig
from transport.producer import EventProducer

if TYPE_CHECKING:
    from sources.gpu.config import GpusConfig
    from sources.gpu.service import AlertSink, GpuSource
    from sources.kv_events.service import KvEventsSource
    from sources.links.config import LinkConfig
    from sources.links.service import LinkSource, RouterDirectory

log = structlog.get_logger(__name__)


class Extras:
    """The parts besides scraping; ``apply`` makes them what the configuration says.

    ``boot_of`` gives the boot of an instance, None while it is not known.
    """

    topics: tuple[Topic, ...] = (KV, GPUS, LINKS, ROUTERS, ALERTS)

    def __init__(
        self, kafka: str, boot_of: Callable[[str], Boot | None], registry: CollectorRegistry
    ) -> None:
        self._kafka = kafka
        self._boot_of = boot_of
        self._registry = registry
        self._events: EventProducer | None = None
        self._alerts: AlertSink | None = None
        self._kv: KvEventsSource | None = None
        self._gpus: GpuSource | None = None
        self._gpus_config: GpusConfig | None = None
        self._links: LinkSource | None = None
        self._directory: RouterDirectory | None = None
        self._reasons: dict[str, str] = {}

    async def start(self, events: EventProducer, alerts: AlertSink) -> None:
        """Take what the parts send through; they begin with ``apply``."""
        self._events, self._alerts = events, alerts

    async def stop(self) -> None:
        """End all parts; the producer and the alerts must still be open."""
        if self._kv is not None:
            await self._kv.stop()
        if self._gpus is not None:
            await self._gpus.stop()
        if self._links is not None:
            await self._links.stop()
        if self._directory is not None:
            await self._directory.stop()

    def unready(self) -> list[str]:
        """Why a part that is configured does not run, as sentences."""
        return list(self._reasons.values()) + (self._kv.unready() if self._kv is not None else [])

    async def apply(self, config: SourceConfig, endpoints: Sequence[EndpointConfig]) -> None:
        """Run what is configured; a part that can't run says so in ``unready`` and the log."""
        if self._events is None or self._alerts is None:
            raise RuntimeError("The parts have not started.")
        await self._apply_kv(config, endpoints, self._events)
        await self._apply_gpus(config.gpus_config, self._events, self._alerts)
        await self._apply_links(config.links, self._events)

    async def _apply_kv(
        self, config: SourceConfig, endpoints: Sequence[EndpointConfig], events: EventProducer
    ) -> None:
        if self._kv is None:
            if not any(endpoint.kv_events for endpoint in endpoints):
                return
            try:
                from sources.kv_events.service import KvEventsSource
            except ImportError:
                self._cannot(
                    "kv",
                    "KV events need the package pyzmq; pip install 'tokenfleet[sources]' brings it.",
                )
                return
            self._kv = KvEventsSource(self._salt(config.prefix_salt_file), self._boot_of)
            self._registry.register(self._kv)
            await self._kv.start(events)
        await self._kv.apply(endpoints)

    async def _apply_gpus(self, config: GpusConfig | None, events: EventProducer, alerts: AlertSink) -> None:
        if config == self._gpus_config:
            return
        if self._gpus is not None:
            await self._gpus.stop()
            self._gpus = None
        self._gpus_config = config
        if config is not None:
            from sources.gpu.service import GpuSource

            self._gpus = GpuSource(config, alerts)
            await self._gpus.start(events)

    async def _apply_links(self, links: Sequence[LinkConfig], events: EventProducer) -> None:
        if self._links is None:
            if not links:
                return
            from sources.links.service import LinkSource

            self._links = LinkSource(self._routers_of)
            await self._links.start(events)
        if self._directory is None and any(not link.urls for link in links):
            from sources.links.service import RouterDirectory

            self._directory = RouterDirectory(self._kafka)
            await self._directory.start()
        await self._links.apply(links)

    def _routers_of(self, region: str) -> Sequence[str]:
        return [] if self._directory is None else self._directory.routers_of(region)

    def _salt(self, file: Path | None) -> Salt | None:
        """The fleet's salt from its file, else from the environment; None where there is none to be had."""
        try:
            if file is not None:
                with file.open(encoding="utf-8") as opened:
                    return Salt.parse(opened.read(4096))
            if text := os.environ.get(SALT_VARIABLE):
                return Salt.parse(text)
        except OSError as error:
            self._cannot("salt", f"The prefix salt {file} can't be read: {error.strerror or error}.")
        except (BadSalt, UnicodeDecodeError) as error:
            sentence = str(error) if isinstance(error, BadSalt) else "It is not UTF-8 text."
            self._cannot("salt", f"The prefix salt in {file or SALT_VARIABLE} can't be used. {sentence}")
        else:
            self._cannot(
                "salt",
                f"KV events need the fleet's prefix salt: set `prefix_salt_file` or {SALT_VARIABLE} "
                "(<id>:<secret in hex>, the same as the routers').",
            )
        return None

    def _cannot(self, part: str, sentence: str) -> None:
        if self._reasons.get(part) != sentence:
            self._reasons[part] = sentence
            log.error("source_part_off", part=part, reason=sentence)
