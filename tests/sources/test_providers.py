"""DNS names and Kubernetes services: followed over real loopback, and never emptied by a failure."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from sources.discovery.config import DnsConfig, EndpointConfig, KubernetesConfig
from sources.discovery.dns import DnsProvider
from sources.discovery.follow import Discovery
from sources.discovery.kubernetes import Cluster, KubernetesProvider, endpoints_of
from sources.discovery.provider import Lookup, Provider

SHARED: dict[str, Any] = {"engine": "vllm", "region": "eu", "pools": ["llama@v1"]}
CONFIG = EndpointConfig.model_validate(SHARED | {"instance": "a", "url": "http://h:1"})


class Listed(Provider):
    """A list whose next answers a test sets."""

    def __init__(self, *answers: list[str] | str) -> None:
        super().__init__("listed", 1.0)
        self._answers = list(answers)

    async def look_up(self) -> list[EndpointConfig]:
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            raise Lookup(answer)
        return [CONFIG.model_copy(update={"instance": name}) for name in answer]

    async def names(self) -> tuple[bool, list[str]]:
        return await self.poll(), sorted(endpoint.instance for endpoint in self.endpoints)


async def test_an_engine_is_gone_when_two_answers_in_a_row_lack_it() -> None:
    listed = Listed(["a", "b"], ["a"], ["a", "b"], ["a"], ["a"], [])
    assert await listed.names() == (True, ["a", "b"])
    assert await listed.names() == (False, ["a", "b"])
    assert await listed.names() == (False, ["a", "b"])
    assert await listed.names() == (False, ["a", "b"])
    assert await listed.names() == (True, ["a"])
    assert await listed.names() == (False, ["a"])


async def test_a_failure_keeps_the_last_good_list_and_says_why() -> None:
    listed = Listed("no answer", ["a"], "no answer", "no answer", "no answer", ["a"])
    assert await listed.names() == (False, [])
    assert (listed.answered, listed.error) == (False, "no answer")
    assert await listed.names() == (True, ["a"])
    for _ in range(3):
        assert await listed.names() == (False, ["a"])
    assert listed.error == "no answer"
    assert await listed.names() == (False, ["a"])
    assert listed.error is None


# --------------------------------------------------------------------------------------------------- DNS


def _dns(**more: object) -> DnsConfig:
    return DnsConfig.model_validate(SHARED | {"name": "localhost", "port": 8000} | more)


async def test_a_name_of_this_machine_gives_its_addresses() -> None:
    found = await DnsProvider(_dns(prefix="pod", metrics_port=8002)).look_up()
    loopback = next(endpoint for endpoint in found if "127.0.0.1" in endpoint.url)
    assert loopback.instance == "pod-127-0-0-1-8000"
    assert (loopback.url, loopback.metrics_url) == ("http://127.0.0.1:8000", "http://127.0.0.1:8002")
    assert (loopback.pools, loopback.region, loopback.engine) == (["llama@v1"], "eu", "vllm")


async def test_addresses_of_both_families_and_one_name_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [
        (family, socket.SOCK_STREAM, 6, "", (host, 8000, *more))
        for family, host, more in (
            (socket.AF_INET6, "fd00::7", (0, 0)),
            (socket.AF_INET, "10.0.0.8", ()),
            (socket.AF_INET, "10.0.0.8", ()),
        )
    ]

    async def resolve(*_: object, **__: object) -> object:
        return answer

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    found = await DnsProvider(_dns(name="engines.example")).look_up()
    assert [(one.instance, one.url) for one in found] == [
        ("engines.example-10-0-0-8-8000", "http://10.0.0.8:8000"),
        ("engines.example-fd00--7-8000", "http://[fd00::7]:8000"),
    ]


async def test_a_name_that_is_none_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", refuse)
    provider = DnsProvider(_dns(name="nothing.example"))
    assert not await provider.poll()
    assert provider.error is not None
    assert "nothing.example gives no address" in provider.error


# -------------------------------------------------------------------------------------------- Kubernetes


def _slice(*endpoints: dict[str, Any], ports: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"endpoints": list(endpoints), "ports": ports or [{"name": "http", "port": 8000}]}


def _pod(name: str, host: str, node: str = "n1", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [host],
        "conditions": {"ready": True, "serving": True, "terminating": False} | conditions,
        "nodeName": node,
        "targetRef": {"kind": "Pod", "name": name},
    }


class Api:
    """A Kubernetes API server as far as EndpointSlices go."""

    def __init__(self) -> None:
        self.pages: list[dict[str, Any]] = []
        self.status = 200
        self.text: str | None = None
        self.asked: list[web.Request] = []
        self.url = ""

    async def start(self) -> web.AppRunner:
        async def answer(request: web.Request) -> web.Response:
            self.asked.append(request)
            if self.text is not None or self.status != 200:
                return web.Response(status=self.status, text=self.text or "")
            place = int(request.query.get("continue", "0"))
            more = {"continue": str(place + 1)} if place + 1 < len(self.pages) else {}
            return web.json_response({"metadata": more, "items": self.pages[place]["items"]})

        app = web.Application()
        path = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        app.add_routes([web.get(path, answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    server = Api()
    runner = await server.start()
    yield server
    await runner.cleanup()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("serving")
    return tmp_path


def _kubernetes(**more: object) -> KubernetesConfig:
    return KubernetesConfig.model_validate(SHARED | {"service": "llama"} | more)


async def test_the_endpoints_of_a_service_page_by_page(api: Api, account: Path) -> None:
    api.pages = [
        {"items": [_slice(_pod("llama-0", "10.0.0.1"), _pod("llama-1", "10.0.0.2"))]},
        {"items": [_slice(_pod("llama-2", "10.0.0.3"))]},
    ]
    provider = KubernetesProvider(_kubernetes(api=api.url), environment={}, account=account)
    try:
        assert await provider.poll()
        assert [(one.instance, one.url) for one in provider.endpoints] == [
            ("llama-0", "http://10.0.0.1:8000"),
            ("llama-1", "http://10.0.0.2:8000"),
            ("llama-2", "http://10.0.0.3:8000"),
        ]
        first, second = api.asked
        assert first.match_info["namespace"] == "serving"
        assert first.query["labelSelector"] == "kubernetes.io/service-name=llama"
        assert first.query["resourceVersion"] == "0"
        assert second.query["continue"] == "1"
        assert first.headers["Authorization"] == "Bearer first"
        (account / "token").write_text("second")
        await provider.poll()
        assert api.asked[-1].headers["Authorization"] == "Bearer second", "tokens are rotated"
    finally:
        await provider.close()


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (403, "", "the service account needs `list` on endpointslices in serving"),
        (500, "", "answers 500"),
        (200, "<html>", "other than JSON"),
        (200, "[]", "something other than a list of EndpointSlices"),
        (200, '{"items": 3}', "something other than a list of EndpointSlices"),
    ],
)
async def test_an_api_server_that_does_not_answer_so(
    api: Api, account: Path, status: int, text: str, said: str
) -> None:
    api.pages = [{"items": [_slice(_pod("llama-0", "10.0.0.1"))]}]
    provider = KubernetesProvider(_kubernetes(api=api.url), environment={}, account=account)
    try:
        await provider.poll()
        api.status, api.text = status, text
        assert not await provider.poll()
        assert provider.error is not None
        assert said in provider.error
        assert [one.instance for one in provider.endpoints] == ["llama-0"], "the last good list stays"
    finally:
        await provider.close()


def test_where_a_pod_finds_its_api_server(account: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.1.0.1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "n1"}
    cluster = Cluster.of(_kubernetes(same_node=True), inside, account)
    assert (cluster.api, cluster.namespace, cluster.node) == ("https://10.1.0.1:443", "serving", "n1")
    assert Cluster.of(_kubernetes(namespace="other"), inside, account).namespace == "other"
    with pytest.raises(Lookup, match="This is no pod"):
        Cluster.of(_kubernetes(), {}, account)
    with pytest.raises(Lookup, match="NODE_NAME"):
        Cluster.of(_kubernetes(same_node=True, api="http://h"), {}, account)
    with pytest.raises(Lookup, match="namespace"):
        Cluster.of(_kubernetes(api="http://h"), {}, account / "none")


def test_the_token_never_goes_in_the_clear_over_a_network(account: Path) -> None:
    for api, sent in (("http://10.1.0.1", False), ("http://127.0.0.1:1", True), ("https://10.1.0.1", True)):
        cluster = Cluster.of(_kubernetes(api=api), {}, account)
        assert ("Authorization" in KubernetesProvider._headers(cluster)) is sent


def test_which_endpoints_count() -> None:
    slices = [
        _slice(
            _pod("ready", "10.0.0.1"),
            _pod("loading", "10.0.0.2", ready=False, serving=False),
            _pod("draining", "10.0.0.3", ready=False, serving=True, terminating=True),
            _pod("gone", "10.0.0.4", ready=False, serving=False, terminating=True),
            _pod("far", "10.0.0.5", node="n2"),
            {"addresses": ["10.0.0.6"], "nodeName": "n1"},
            {"addresses": []},
            "nonsense",  # type: ignore[arg-type]
        ),
        _slice(_pod("ready", "fd00::1")),
        "nonsense",
        {"endpoints": None, "ports": None},
    ]
    found = {one.instance: one for one in endpoints_of(slices, _kubernetes(), "n1")}
    assert set(found) == {"ready", "loading", "draining", "10.0.0.6-8000"}
    assert {name for name, one in found.items() if one.draining} == {"draining"}
    assert found["ready"].url == "http://10.0.0.1:8000", "one address a pod, the first"
    assert {one.host for one in found.values()} == {"n1"}, "the node is the host whose GPUs it has"
    nameless = [_slice({"addresses": ["10.0.0.7"], "nodeName": 3})]
    assert [one.host for one in endpoints_of(nameless, _kubernetes(host="h"), None)] == ["h"]
    assert len(list(endpoints_of(slices, _kubernetes(), None))) == 5


def test_which_port_counts() -> None:
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 8002}]
    slices = [_slice(_pod("a", "10.0.0.1"), ports=ports)]

    def url(**more: object) -> list[str]:
        return [one.url for one in endpoints_of(slices, _kubernetes(**more), None)]

    assert url(port="metrics") == ["http://10.0.0.1:8002"]
    assert url(port=9000) == ["http://10.0.0.1:9000"]
    assert url(port="grpc") == []
    assert url() == [], "two ports and none was named"
    (one,) = endpoints_of(slices, _kubernetes(port="http", metrics_port=8002), None)
    assert one.metrics_url == "http://10.0.0.1:8002"


# ------------------------------------------------------------------------------------------ all together


async def _polled(discovery: Discovery, until: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            await discovery.poll()
            if until():
                return
            await asyncio.sleep(0.01)


async def test_the_file_names_and_services_make_one_list(api: Api, tmp_path: Path) -> None:
    api.pages = [{"items": [_slice(_pod("llama-0", "10.0.0.1"))]}]
    service = SHARED | {"service": "llama", "namespace": "serving", "api": api.url, "every_s": 0.05}
    fixed = SHARED | {"instance": "llama-0", "url": "http://h:1"}
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump({"endpoints": [fixed], "kubernetes": [service]}))
    discovery = Discovery(path)
    try:
        assert not discovery.complete, "the service's list was not had yet"
        assert [one.url for one in discovery.endpoints()] == ["http://h:1"]
        await _polled(discovery, lambda: discovery.complete)
        assert [one.url for one in discovery.endpoints()] == ["http://h:1"], "the first list wins"
        assert any("Listed twice" in error for error in discovery.errors)
        path.write_text(yaml.safe_dump({"kubernetes": [service]}))
        await _polled(
            discovery, lambda: [one.url for one in discovery.endpoints()] == ["http://10.0.0.1:8000"]
        )
        assert discovery.errors == []
        api.status = 500
        await _polled(discovery, lambda: bool(discovery.errors))
        assert [one.instance for one in discovery.endpoints()] == ["llama-0"]
        path.write_text(yaml.safe_dump({"endpoints": []}))
        await _polled(discovery, lambda: discovery.endpoints() == [])
        assert discovery.errors == []
    finally:
        await discovery.close()
