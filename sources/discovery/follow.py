"""All that an agent follows, as one list: the file itself, and the names and services that it lists."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from sources.discovery.config import DnsConfig, EndpointConfig, KubernetesConfig, SourceConfig
from sources.discovery.dns import DnsProvider
from sources.discovery.file import WatchedFile
from sources.discovery.kubernetes import KubernetesProvider
from sources.discovery.provider import Provider
from transport.clock import monotonic_ms

log = structlog.get_logger(__name__)


class Discovery:
    """The union of all lists. An instance that two of them name is the first one's, and that is said."""

    def __init__(self, path: Path) -> None:
        """Reads the file for the first time; raises sources.discovery.config.ConfigError."""
        self._file = WatchedFile.load(path)
        self._providers: dict[str, Provider] = {}
        self._due_ms: dict[str, float] = {}
        self._looking: dict[str, asyncio.Task[bool]] = {}
        self._follow(self._file.config)

    @property
    def config(self) -> SourceConfig:
        """The file as last read well."""
        return self._file.config

    @property
    def errors(self) -> list[str]:
        """Why lists are not current, as sentences; the last good ones are in use."""
        errors = [self._file.error] if self._file.error else []
        errors += [provider.error for provider in self._providers.values() if provider.error]
        names = [endpoint.instance for endpoint in self._all()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            errors.append(f"Listed twice, the first counts: {', '.join(twice[:5])}.")
        return errors

    @property
    def complete(self) -> bool:
        """True once each list was had at least once: only then is what is missing from them gone."""
        return all(provider.answered for provider in self._providers.values())

    def endpoints(self) -> list[EndpointConfig]:
        """The engines to watch now."""
        found: dict[str, EndpointConfig] = {}
        for endpoint in self._all():
            found.setdefault(endpoint.instance, endpoint)
        return list(found.values())

    def _all(self) -> list[EndpointConfig]:
        every = list(self._file.config.endpoints)
        for provider in self._providers.values():
            every += provider.endpoints
        return every

    async def poll(self) -> bool:
        """Look at the file, and start the look-ups that are due; True where ``endpoints`` may have changed.

        A look-up runs beside: one that hangs holds up neither the file nor the others.
        """
        changed = await asyncio.to_thread(self._file.poll)
        if changed:
            await self._drop_unlisted()
            self._follow(self._file.config)
        for name, task in list(self._looking.items()):
            if task.done():
                del self._looking[name]
                if task.exception() is not None:
                    log.error("discovery_failed_inside", provider=name, error=repr(task.exception()))
                elif task.result():
                    changed = True
        for name, provider in self._providers.items():
            if name not in self._looking and monotonic_ms() >= self._due_ms.get(name, 0.0):
                self._due_ms[name] = monotonic_ms() + provider.every_s * 1000.0
                self._looking[name] = asyncio.create_task(provider.poll(), name=f"look-up-{name}")
        return changed

    def _follow(self, config: SourceConfig) -> None:
        for name, one in _keyed(config).items():
            if name not in self._providers:
                self._providers[name] = _provider(one)

    async def _drop_unlisted(self) -> None:
        wanted = _keyed(self._file.config)
        for name in [name for name in self._providers if name not in wanted]:
            if task := self._looking.pop(name, None):
                task.cancel()
            await self._providers.pop(name).close()
            self._due_ms.pop(name, None)

    async def close(self) -> None:
        """Stop all look-ups."""
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)
        for provider in self._providers.values():
            await provider.close()


def _keyed(config: SourceConfig) -> dict[str, DnsConfig | KubernetesConfig]:
    """Names and services by all that is said of them: a changed one is another."""
    every: list[DnsConfig | KubernetesConfig] = [*config.dns, *config.kubernetes]
    return {f"{type(one).__name__}:{one!r}": one for one in every}


def _provider(config: DnsConfig | KubernetesConfig) -> Provider:
    return DnsProvider(config) if isinstance(config, DnsConfig) else KubernetesProvider(config)
