"""Instances start, restart, freeze, drain and stop; fleets start whole or not at all."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sim.engines import (
    EmulatedFleet,
    EmulatedInstance,
    EmulatorError,
    InstanceSpec,
    load_specs,
    remove_endpoints,
    write_endpoints,
)


def spec(**fields: Any) -> InstanceSpec:
    return InstanceSpec(**({"instance": "eu-0", "region": "eu", "model": "m"} | fields))


async def page(client: aiohttp.ClientSession, instance: EmulatedInstance) -> dict[str, float]:
    async with client.get(f"{instance.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {s: float(v) for s, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def refused(url: str) -> bool:
    async with aiohttp.ClientSession() as fresh:
        try:
            async with fresh.get(f"{url}/health"):
                return False
        except aiohttp.ClientConnectorError:
            return True


async def test_restart_is_a_new_life_and_ends_streams_with_an_error_event(
    client: Any, chat_body: Any, eventually: Callable[..., Any]
) -> None:
    async with EmulatedFleet([spec()], admin=True) as fleet:
        (instance,) = fleet.instances
        response = await client.post(f"{instance.url}/v1/chat/completions", json=chat_body(5_000))
        await response.content.readany()
        before = await page(client, instance)
        async with client.post(f"{instance.url}/emulator/restart") as answer:
            assert answer.status == 200
        rest = (await response.read()).decode()
        events = [part for part in rest.split("\n\n") if part]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == 500
        state = await eventually(instance, lambda state: state["submitted"] == 0)
        assert (state["running"], state["kv_used_blocks"], state["kv_cached_blocks"]) == (0, 0, 0)
        after = await page(client, instance)
        generated = 'vllm:generation_tokens_total{engine="0",model_name="m"}'
        created = 'vllm:generation_tokens_created{engine="0",model_name="m"}'
        assert before[generated] > 0
        assert after[generated] == 0
        assert after[created] > before[created]
        assert after["process_start_time_seconds"] > before["process_start_time_seconds"]


async def test_port_is_closed_while_down_and_the_same_afterwards(client: Any) -> None:
    async with EmulatedFleet([spec()], admin=True) as fleet:
        (instance,) = fleet.instances
        url = instance.url
        async with client.post(f"{url}/emulator/restart?down_ms=300000") as answer:
            assert answer.status == 200
        for _ in range(1_000):
            if await refused(url):
                break
            await asyncio.sleep(0.005)
        assert await refused(url)
        await instance.stop()  # ends the outage's wait as well
        await instance.start()
        assert instance.url == url
        assert not await refused(url)
        await instance.restart(down_ms=1.0)
        assert instance.url == url
        assert not await refused(url)


async def test_freeze_stops_tokens_but_not_http(
    client: Any, chat_body: Any, eventually: Callable[..., Any]
) -> None:
    async with EmulatedFleet([spec(speed=20.0)], admin=True) as fleet:
        (instance,) = fleet.instances
        async with client.post(f"{instance.url}/emulator/freeze?ms=3600000") as answer:
            assert (await answer.json()) == {"frozen": True}
        response = await client.post(f"{instance.url}/v1/chat/completions", json=chat_body(5))
        await eventually(instance, lambda state: state["running"] == 1)
        async with client.get(f"{instance.url}/emulator/state") as answer:
            state = await answer.json()
        assert state["frozen"]
        assert state["generation_tokens"] == 0
        async with client.post(f"{instance.url}/emulator/freeze?ms=0") as answer:
            assert (await answer.json()) == {"frozen": False}
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
        for wrong in ("", "?ms=x", "?ms=-1", "?ms=nan"):
            async with client.post(f"{instance.url}/emulator/freeze{wrong}") as answer:
                assert answer.status == 400


async def test_drain_lets_open_streams_finish_and_refuses_new_ones(client: Any, chat_body: Any) -> None:
    (instance,) = (fleet := EmulatedFleet([spec(speed=5.0)], drain_s=30.0)).instances
    await fleet.start()
    response = await client.post(f"{instance.url}/v1/chat/completions", json=chat_body(100))
    await response.content.readany()
    stopping = asyncio.create_task(fleet.stop())
    rest = await response.read()
    await stopping
    assert rest.endswith(b"data: [DONE]\n\n")
    assert await refused(instance.url)
    assert len(asyncio.all_tasks()) == 1


async def test_stop_without_drain_cuts_streams_and_leaves_no_task(client: Any, chat_body: Any) -> None:
    async with EmulatedFleet([spec(), spec(instance="eu-1")]) as fleet:
        response = await client.post(f"{fleet.instances[0].url}/v1/chat/completions", json=chat_body(5_000))
        await response.content.readany()
        urls = [instance.url for instance in fleet.instances]
    rest = (await response.read()).decode()
    assert '"code": 500' in rest
    assert [await refused(url) for url in urls] == [True, True]
    assert len(asyncio.all_tasks()) == 1


async def test_taken_port_is_one_sentence_and_stops_the_rest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fleet = EmulatedFleet([spec(), spec(instance="eu-1", port=port)])
        with pytest.raises(
            EmulatorError, match=rf"eu-1 can't listen on 127.0.0.1:{port} .*Choose another port"
        ):
            await fleet.start()
        assert await refused(fleet.instances[0].url)
    assert len(asyncio.all_tasks()) == 1


async def test_endpoint_list_names_every_instance(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    async with EmulatedFleet([spec(), spec(instance="us-0", region="us", version="v2")]) as fleet:
        write_endpoints(path, fleet.instances)
        listed = yaml.safe_load(path.read_text())
        assert listed["endpoints"][1] == {
            "instance": "us-0",
            "engine": "vllm",
            "url": fleet.by_id("us-0").url,
            "region": "us",
            "pools": ["m@v2"],
        }
        with pytest.raises(EmulatorError, match="Can't write"):
            write_endpoints(tmp_path / "absent" / "x.yaml", fleet.instances)
    assert os.listdir(tmp_path) == ["endpoints.yaml"]  # no draft left
    remove_endpoints(path)
    assert not path.exists()
    remove_endpoints(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("instances: []", "at instances"),
        ("instances: [{instance: a, model: m, params: S7}]", "S1, S2, S3, S4"),
        ("instances: [{instance: a, model: m, sped: 2}]", "instances.0.sped"),
        ("instances: [{instance: a, model: m, speed: 0}]", "instances.0.speed"),
        ("instances: [{instance: a, model: m, kv_tokens: 16}]", "two blocks"),
        ("instances: [{instance: a, model: m}, {instance: a, model: m}]", "'a' is given 2 times"),
        (
            "instances: [{instance: a, model: m, port: 81}, {instance: b, model: m, port: 81}]",
            "Port 81 on 127.0.0.1 is given to 2",
        ),
        ("instances: [", "not valid YAML"),
        ("- 1", "wrong at the file"),
    ],
)
def test_wrong_instance_files_say_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(EmulatorError) as caught:
        load_specs(path)
    assert says in str(caught.value)


def test_instance_file_is_read_and_an_absent_one_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "instances:\n"
        "  - {instance: eu-0, region: eu, port: 8101, params: S4, model: llama-70b, speed: 2.0,\n"
        "     kv_tokens: null}\n"
    )
    (read,) = load_specs(path)
    assert (read.pool, read.kv_capacity_tokens, read.port) == ("llama-70b@v1", 400_000, 8_101)
    with pytest.raises(EmulatorError, match="Can't read"):
        load_specs(tmp_path / "absent.yaml")
