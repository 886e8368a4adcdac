"""Engines behind a DNS name: each address that the system's resolver gives is one."""

from __future__ import annotations

import asyncio
import re
import socket

from pydantic import ValidationError

from sources.discovery.config import DnsConfig, EndpointConfig, EngineConfig
from sources.discovery.provider import Lookup, Provider

TIMEOUT_S = 5.0


class DnsProvider(Provider):
    """Follows one name. The resolver is the system's own (hosts file, search domains and all)."""

    def __init__(self, config: DnsConfig) -> None:
        super().__init__(f"dns:{config.name}:{config.port}", config.every_s)
        self.config = config

    async def look_up(self) -> list[EndpointConfig]:
        config = self.config
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    config.name, config.port, type=socket.SOCK_STREAM
                )
        except TimeoutError:
            raise Lookup(f"The DNS name {config.name} was not answered within {TIMEOUT_S:g} s.") from None
        except (OSError, UnicodeError) as error:
            raise Lookup(f"The DNS name {config.name} gives no address: {error}.") from None
        hosts = sorted({str(address[4][0]) for address in found})
        prefix = config.prefix or config.name
        return [
            endpoint_at(
                config,
                instance=f"{prefix}-{re.sub(r'[^0-9A-Za-z]', '-', host)}-{config.port}",
                host=host,
                scheme=config.scheme,
                port=config.port,
                metrics_port=config.metrics_port,
            )
            for host in hosts
        ]


def endpoint_at(
    config: EngineConfig,
    *,
    instance: str,
    host: str,
    scheme: str,
    port: int,
    metrics_port: int | None,
    draining: bool = False,
    node: str | None = None,
) -> EndpointConfig:
    """The engine at this address, otherwise as the configuration says; raises Lookup where that is none.

    ``node`` is the host that it is known to run on; without it, the configuration's.
    """
    bracketed = f"[{host}]" if ":" in host else host
    shared = config.model_dump(include=set(EngineConfig.model_fields))
    try:
        return EndpointConfig.model_validate(
            shared
            | {
                "instance": instance,
                "url": f"{scheme}://{bracketed}:{port}",
                "metrics_url": None if metrics_port is None else f"{scheme}://{bracketed}:{metrics_port}",
                "draining": draining,
                "host": node or config.host,
            }
        )
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise Lookup(f"{instance[:80]} can't be watched: {first['loc'][-1]}: {first['msg']}.") from None
