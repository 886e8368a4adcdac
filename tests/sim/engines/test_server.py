"""Emulated instances over real HTTP: answers, streams, cancels, overload, admission."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from sim.engines import EmulatedFleet, EmulatedInstance, InstanceSpec


def spec(**fields: Any) -> InstanceSpec:
    return InstanceSpec(**({"instance": "eu-0", "model": "m", "speed": 20.0} | fields))


async def read_stream(response: aiohttp.ClientResponse) -> tuple[list[dict[str, Any]], bool]:
    """All JSON events of a stream, and whether it ended with ``[DONE]``."""
    raw = (await response.read()).decode()
    events = [part.removeprefix("data: ") for part in raw.split("\n\n") if part]
    done = bool(events) and events[-1] == "[DONE]"
    return [json.loads(event) for event in events if event != "[DONE]"], done


def words(events: list[dict[str, Any]]) -> list[str]:
    return [e["choices"][0]["delta"]["content"].strip() for e in events if e["choices"]][1:]


async def metric(client: aiohttp.ClientSession, instance: EmulatedInstance, series: str) -> float:
    async with client.get(f"{instance.url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        for line in (await response.text()).splitlines():
            if line.startswith(series + " "):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no series {series}")


async def test_streamed_and_whole_answers_agree(client: Any, chat_body: Any) -> None:
    async with EmulatedFleet([spec()]) as fleet:
        url = f"{fleet.instances[0].url}/v1/chat/completions"
        body = chat_body(30) | {"stream_options": {"include_usage": True}}
        async with client.post(url, json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            events, done = await read_stream(response)
        assert done
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len(words(events)) == 30
        assert events[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 33, "completion_tokens": 30}
        async with client.post(url, json=chat_body(30, stream=False)) as response:
            whole = await response.json()
        assert whole["choices"][0]["message"]["content"].split() == words(events)
        assert whole["choices"][0]["finish_reason"] == "length"


async def test_completions_of_text_and_token_ids(client: Any) -> None:
    async with EmulatedFleet([spec()]) as fleet:
        url = f"{fleet.instances[0].url}/v1/completions"
        for prompt in ("1 2 3", [1, 2, 3]):
            async with client.post(
                url, json={"prompt": prompt, "max_tokens": 4, "ignore_eos": True}
            ) as response:
                answer = await response.json()
            assert answer["usage"]["prompt_tokens"] == 3
            assert len(answer["choices"][0]["text"].split()) == 4
        async with client.post(url, json={"prompt": "1", "max_tokens": 4, "stream": True}) as response:
            events, done = await read_stream(response)
        assert done
        assert {e["object"] for e in events} == {"text_completion"}


async def test_service_routes(client: Any) -> None:
    async with EmulatedFleet([spec()]) as fleet:
        url = fleet.instances[0].url
        async with client.get(f"{url}/health") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with client.get(f"{url}/version") as response:
            assert await response.json() == {"version": "0.32.0"}
        async with client.get(f"{url}/v1/models") as response:
            (card,) = (await response.json())["data"]
            assert (card["id"], card["object"], card["max_model_len"]) == ("m", "model", 131_072)
        async with client.get(f"{url}/emulator/state") as response:
            assert response.status == 404  # only with admin


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/completions", b'{"prompt": 5}', 400),
        ("/v1/completions", b'{"prompt": "a", "model": "other"}', 404),
        ("/v1/completions", json.dumps({"prompt": "a " * 2_000}).encode(), 400),
        ("/v1/embeddings", b"{}", 404),
    ],
)
async def test_bad_requests_get_openai_errors(client: Any, path: str, body: bytes, status: int) -> None:
    async with EmulatedFleet([spec(max_model_len=1_000)]) as fleet:
        async with client.post(f"{fleet.instances[0].url}{path}", data=body) as response:
            assert response.status == status
            error = (await response.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == status
        state = fleet.instances[0].state()
        assert state["submitted"] == 0


async def test_disconnect_in_mid_stream_frees_kv_and_moves_no_request_metric(
    client: Any, chat_body: Any, eventually: Callable[..., Any]
) -> None:
    async with EmulatedFleet([spec(speed=1.0)]) as fleet:
        (instance,) = fleet.instances
        body = chat_body(5_000, "word " * 400)
        async with client.post(f"{instance.url}/v1/chat/completions", json=body) as response:
            await response.content.readany()
            during = instance.state()
            assert during["running"] == 1
            assert during["kv_used_blocks"] >= 25
            response.close()
        after = await eventually(instance, lambda state: state["running"] == 0)
        assert (after["kv_used_blocks"], after["waiting"], after["cancelled"]) == (0, 0, 1)
        labels = '{engine="0",model_name="m"}'
        assert await metric(client, instance, f"vllm:e2e_request_latency_seconds_count{labels}") == 0
        assert await metric(client, instance, f"vllm:kv_cache_usage_perc{labels}") == 0
        assert await metric(client, instance, f"vllm:time_to_first_token_seconds_count{labels}") == 1
        for reason in ("abort", "stop", "length", "error"):
            series = f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="m"}}'
            assert await metric(client, instance, series) == 0


async def test_disconnect_of_a_request_that_is_not_streamed_cancels_too(
    client: Any, chat_body: Any, eventually: Callable[..., Any]
) -> None:
    async with EmulatedFleet([spec(speed=1.0)]) as fleet:
        (instance,) = fleet.instances
        url = f"{instance.url}/v1/chat/completions"
        request = asyncio.create_task(client.post(url, json=chat_body(5_000, stream=False)))
        await eventually(instance, lambda state: state["running"] == 1)
        request.cancel()
        state = await eventually(instance, lambda state: state["running"] == 0)
        assert (state["kv_used_blocks"], state["cancelled"]) == (0, 1)


async def test_small_cache_preempts_and_every_stream_still_completes(client: Any, chat_body: Any) -> None:
    async with EmulatedFleet([spec(kv_tokens=640, speed=200.0)]) as fleet:
        (instance,) = fleet.instances

        async def one(index: int) -> int:
            body = chat_body(200, f"caller {index} says something")
            async with client.post(f"{instance.url}/v1/chat/completions", json=body) as response:
                events, done = await read_stream(response)
            assert done
            return len(words(events))

        assert await asyncio.gather(*(one(i) for i in range(8))) == [200] * 8
        state = instance.state()
        assert state["preemptions"] > 0
        assert state["generation_tokens"] == 1_600
        assert (state["kv_used_blocks"], state["finished_length"]) == (0, 8)
        series = 'vllm:num_preemptions_total{engine="0",model_name="m"}'
        assert await metric(client, instance, series) == state["preemptions"]


async def test_next_turn_hits_the_prefix_cache(client: Any) -> None:
    async with EmulatedFleet([spec()]) as fleet:
        (instance,) = fleet.instances
        url = f"{instance.url}/v1/chat/completions"
        messages = [{"role": "user", "content": "tell " * 60}]
        async with client.post(
            url, json={"messages": messages, "max_tokens": 40, "ignore_eos": True}
        ) as response:
            answer = (await response.json())["choices"][0]["message"]
        messages += [answer, {"role": "user", "content": "go on"}]
        async with client.post(url, json={"messages": messages, "max_tokens": 1}) as response:
            assert response.status == 200
        # 62 prompt tokens and 39 that were fed back are resident: six full blocks.
        assert instance.state()["prefix_hit_tokens"] == 96


async def test_full_queue_refuses_completions_with_503_and_chats_with_an_event(
    client: Any, chat_body: Any, eventually: Callable[..., Any]
) -> None:
    async with EmulatedFleet([spec(max_num_seqs=1, max_queued_requests=1, speed=1.0)]) as fleet:
        (instance,) = fleet.instances
        url = f"{instance.url}/v1"
        runs = await client.post(f"{url}/chat/completions", json=chat_body(5_000))
        await eventually(instance, lambda state: state["running"] == 1)
        waits = await client.post(f"{url}/chat/completions", json=chat_body(5_000))
        await eventually(instance, lambda state: state["waiting"] == 1)
        for stream in (False, True):
            body = {"prompt": "a", "max_tokens": 3, "stream": stream}
            async with client.post(f"{url}/completions", json=body) as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == 503
        async with client.post(f"{url}/chat/completions", json=chat_body(3)) as response:
            assert response.status == 200
            events, done = await read_stream(response)
            assert done
            assert [event["error"]["code"] for event in events] == [503]
        async with client.post(f"{url}/chat/completions", json=chat_body(3, stream=False)) as response:
            assert response.status == 503
        series = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"}'
        assert await metric(client, instance, series) == 4
        runs.close()
        waits.close()
        state = await eventually(instance, lambda state: state["running"] + state["waiting"] == 0)
        assert state["cancelled"] == 2
