"""Engines behind a Kubernetes service: its EndpointSlices, read from the API server.

A plain list every few seconds, answered from the API server's cache (``resourceVersion=0``): a scrape finds
out sooner than any watch whether an engine is there, so the list only has to say which there are. The
service account needs ``list`` on ``endpointslices`` (infra/kubernetes has the role).
API: https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sources.discovery.config import EndpointConfig, KubernetesConfig
from sources.discovery.dns import endpoint_at
from sources.discovery.provider import Lookup, Provider

TIMEOUT_S = 10.0
MAX_BYTES = 16 * 1024 * 1024
MAX_PAGES = 100
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Cluster:
    """How the API server is reached and who asks."""

    api: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None
    node: str | None

    @classmethod
    def of(cls, config: KubernetesConfig, environment: Mapping[str, str], account: Path = ACCOUNT) -> Cluster:
        """From the configuration, and from what a pod is given; raises Lookup where something is missing."""
        api = config.api
        if api is None:
            host, port = (
                environment.get("KUBERNETES_SERVICE_HOST"),
                environment.get("KUBERNETES_SERVICE_PORT"),
            )
            if not host or not port:
                raise Lookup(
                    "This is no pod (KUBERNETES_SERVICE_HOST is not set); give the API server as `api`."
                )
            api = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        namespace = config.namespace or _text(account / "namespace")
        if namespace is None:
            raise Lookup(f"The namespace of {config.service} is not known; give it as `namespace`.")
        node = environment.get("NODE_NAME")
        if config.same_node and not node:
            raise Lookup(
                "`same_node` needs the environment variable NODE_NAME (downward API: spec.nodeName)."
            )
        token, ca = account / "token", account / "ca.crt"
        return cls(
            api.rstrip("/"),
            namespace,
            token if token.exists() else None,
            ca if ca.exists() else None,
            node if config.same_node else None,
        )


class KubernetesProvider(Provider):
    """Follows one service."""

    def __init__(
        self,
        config: KubernetesConfig,
        *,
        environment: Mapping[str, str] | None = None,
        account: Path = ACCOUNT,
    ) -> None:
        super().__init__(f"kubernetes:{config.namespace or ''}/{config.service}", config.every_s)
        self.config = config
        self._environment = os.environ if environment is None else environment
        self._account = account
        self._session: aiohttp.ClientSession | None = None
        self._ssl: ssl.SSLContext | bool = True

    async def look_up(self) -> list[EndpointConfig]:
        cluster = Cluster.of(self.config, self._environment, self._account)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                slices = await self._slices(cluster)
        except TimeoutError:
            raise Lookup(f"{cluster.api} did not answer within {TIMEOUT_S:g} s.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Lookup(f"{cluster.api} can't be asked: {type(error).__name__}.") from None
        return list(endpoints_of(slices, self.config, cluster.node))

    async def _slices(self, cluster: Cluster) -> list[Any]:
        found: list[Any] = []
        more: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._page(cluster, more)
            items = page.get("items")
            if not isinstance(items, list):
                raise Lookup(f"{cluster.api} answers something other than a list of EndpointSlices.")
            found += items
            metadata = page.get("metadata")
            more = metadata.get("continue") if isinstance(metadata, dict) else None
            if not more:
                return found
        raise Lookup(f"{cluster.api} lists more than {MAX_PAGES} pages of EndpointSlices; not believed.")

    async def _page(self, cluster: Cluster, more: str | None) -> dict[str, Any]:
        if self._session is None:
            if cluster.ca_file is not None:
                self._ssl = ssl.create_default_context(cafile=str(cluster.ca_file))
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        url = f"{cluster.api}/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace}/endpointslices"
        query = {"labelSelector": f"kubernetes.io/service-name={self.config.service}", "limit": "500"}
        query |= {"continue": more} if more else {"resourceVersion": "0"}
        async with self._session.get(
            url, params=query, headers=self._headers(cluster), ssl=self._ssl, allow_redirects=False
        ) as answer:
            if answer.status in (401, 403):
                raise Lookup(
                    f"{cluster.api} refuses ({answer.status}): the service account needs `list` on "
                    f"endpointslices in {cluster.namespace}."
                )
            if answer.status != 200:
                raise Lookup(f"{cluster.api} answers {answer.status}, not 200.")
            parts: list[bytes] = []
            size = 0
            async for part in answer.content.iter_any():
                parts.append(part)
                if (size := size + len(part)) > MAX_BYTES:
                    raise Lookup(f"{cluster.api} answers more than {MAX_BYTES // 1024} kB; not believed.")
        try:
            page = json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            raise Lookup(f"{cluster.api} answers something other than JSON.") from None
        return page if isinstance(page, dict) else {}

    @staticmethod
    def _headers(cluster: Cluster) -> dict[str, str]:
        """The account's token, read each time since it is rotated; never sent in the clear over a network."""
        parts = urlsplit(cluster.api)
        if cluster.token_file is None or (
            parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost")
        ):
            return {}
        token = _text(cluster.token_file)
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def endpoints_of(slices: list[Any], config: KubernetesConfig, node: str | None) -> Iterator[EndpointConfig]:
    """The engines in these EndpointSlices. What does not look like one is left out, not guessed at.

    An endpoint that is not ready is listed: whether it answers is found out by asking it. One that terminates
    but still serves is draining; one that does neither is gone.
    """
    seen: set[str] = set()
    for one in slices:
        if not isinstance(one, dict):
            continue
        port = _port(one.get("ports"), config.port)
        if port is None:
            continue
        for endpoint in one.get("endpoints") or ():
            if not isinstance(endpoint, dict):
                continue
            addresses = endpoint.get("addresses")
            host = addresses[0] if isinstance(addresses, list) and addresses else None
            if not isinstance(host, str) or (node is not None and endpoint.get("nodeName") != node):
                continue
            state = endpoint.get("conditions")
            state = state if isinstance(state, dict) else {}
            terminating = state.get("terminating") is True
            if terminating and state.get("serving") is not True:
                continue
            instance = _instance(endpoint, host, port)
            if instance in seen:  # the same pod in slices of both address families
                continue
            seen.add(instance)
            runs_on = endpoint.get("nodeName")
            yield endpoint_at(
                config,
                instance=instance,
                host=host,
                scheme=config.scheme,
                port=port,
                metrics_port=config.metrics_port,
                draining=terminating,
                node=runs_on if isinstance(runs_on, str) else None,
            )


def _instance(endpoint: dict[str, Any], host: str, port: int) -> str:
    target = endpoint.get("targetRef")
    name = target.get("name") if isinstance(target, dict) else None
    return name if isinstance(name, str) and name else f"{host.replace(':', '-')}-{port}"


def _port(ports: Any, wanted: str | int | None) -> int | None:
    listed = [one for one in ports or () if isinstance(one, dict) and isinstance(one.get("port"), int)]
    if isinstance(wanted, int):
        return wanted
    if wanted is None:
        return listed[0]["port"] if len(listed) == 1 else None
    return next((one["port"] for one in listed if one.get("name") == wanted), None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
