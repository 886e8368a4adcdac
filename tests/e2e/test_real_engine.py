"""The loop over real llama.cpp servers: readings, routing, streaming, cancelling, dying, prefix reuse."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from infra.llamacpp.wheel import is_installed
from sim.workloads.prompts import WORDS, prompt_text
from tests.e2e.running import WAIT_S, assert_books, running_up, wait_for

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_installed(), reason="no llama.cpp: the xllamacpp wheel is not installed"),
]

MODEL, POOL = "small-llama", "small-llama@v1"
INSTANCES = {"eu-west-0", "eu-west-1", "us-east-0", "us-east-1", "ap-south-0"}
BOS_TOKENS = 1
"""The tokenizer puts a beginning-of-sequence token before each prompt."""


T = TypeVar("T")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, kafka) -> Iterator[Stack]:
    """``tokenfleet up`` with the model that takes a while for each token."""
    flags = ("--engine", "llama.cpp", "--model-size", "small")
    with running_up(tmp_path_factory.mktemp("real"), *flags) as state:
        yield Stack(state)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session:
        yield session


class Stack:
    """The running stack: its addresses, its tables, and what ClickHouse knows."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self.router = state["urls"]["router-1"]

    def url(self, name: str) -> str:
        return str(self._state["urls"][name])

    def kill(self, name: str) -> None:
        """SIGKILL a process, as it is called now."""
        state = json.loads((self._state["data"] / "stack.json").read_text())
        os.kill(state["processes"][name]["pid"], signal.SIGKILL)

    async def rows(self, http: aiohttp.ClientSession, table: str) -> dict[str, dict[str, Any]]:
        async with http.get(f"{self.router}/v1/tables/{table}") as answer:
            return {row["key"]: row for row in (await answer.json())["rows"]}

    async def outcomes(self, http: aiohttp.ClientSession, intent: str) -> list[dict[str, Any]]:
        """All outcomes of an intent, in the order of its attempts; none until the sink has them."""
        sql = f"SELECT * FROM outcomes WHERE intent_id = '{intent}' ORDER BY attempt"
        return await self.query(http, sql)

    async def outcome(self, http: aiohttp.ClientSession, intent: str) -> dict[str, Any]:
        async def last() -> dict[str, Any] | None:
            found = await self.outcomes(http, intent)
            return found[-1] if found else None

        return await until(f"an outcome of {intent}", last)

    async def query(self, http: aiohttp.ClientSession, sql: str) -> list[dict[str, Any]]:
        parameters = {
            "database": "tokenfleet",
            "default_format": "JSONEachRow",
            "output_format_json_quote_64bit_integers": "0",
        }
        async with http.post(self._state["clickhouse"], params=parameters, data=sql) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    async def busy_slots(self, http: aiohttp.ClientSession, instance: str) -> int | None:
        """As the engine itself says; None while it does not answer."""
        try:
            async with http.get(f"{self.url(instance)}/slots") as answer:
                return sum(slot["is_processing"] for slot in await answer.json())
        except aiohttp.ClientError:
            return None


async def until(what: str, check: Callable[[], Awaitable[T | None]], timeout_s: float = WAIT_S) -> T:
    """The first truthy answer; fails with ``what`` where there is none in time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while loop.time() < end_s:
        if answer := await check():
            return answer
        await asyncio.sleep(0.1)
    pytest.fail(f"{what} did not happen within {timeout_s:.0f} s")


def body(prompt: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **more,
    }


@asynccontextmanager
async def stream(
    stack: Stack, http: aiohttp.ClientSession, intent: str, max_tokens: int
) -> AsyncIterator[tuple[aiohttp.ClientResponse, AsyncIterator[dict[str, Any]]]]:
    """A streamed answer through the router and its chunks; leaving early closes the connection."""
    asked = body(prompt_text(20, (), intent), max_tokens, stream=True)
    url = f"{stack.router}/v1/chat/completions"
    async with http.post(url, json=asked, headers={"Idempotency-Key": intent}) as answer:
        assert answer.status == 200
        yield answer, chunks(answer)
        answer.close()


async def chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each event up to the end mark; the last one of a broken stream is an error."""
    async for line in answer.content:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def content_of(chunk: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))


async def test_what_it_tells_is_fresh_and_what_it_does_not_is_unknown(stack: Stack, http) -> None:
    async def instances() -> dict[str, dict[str, Any]] | None:
        rows = await stack.rows(http, "instances")
        fresh = all(row["gauges"]["requests_running"]["quality"] == "fresh" for row in rows.values())
        return rows if rows.keys() == INSTANCES and fresh else None

    rows = await until("a fresh reading of every instance", instances)
    for row in rows.values():
        assert (row["engine"], row["state"], row["pools"]) == ("llama.cpp", "ready", [POOL])
        assert row["gauges"]["requests_waiting"]["value"] == 0.0
        unknown = row["gauges"].get("kv_usage_ratio") or {}
        assert unknown.get("value") is None
        assert unknown.get("quality", "unknown") == "unknown"
    for row in (await stack.rows(http, "regions")).values():
        assert (row.get("kv_usage_ratio") or {}).get("value") is None

    async def stored() -> dict[str, Any] | None:
        (counts,) = await stack.query(
            http,
            "SELECT countIf(requests_running IS NOT NULL) AS running, count(kv_usage_ratio) AS kv, "
            "groupUniqArray(kv_usage_ratio_quality) AS qualities FROM telemetry_raw WHERE reachable",
        )
        return counts if counts["running"] else None

    counts = await until("telemetry in ClickHouse", stored)
    assert (counts["kv"], counts["qualities"]) == (0, ["unknown"])


async def test_a_request_in_one_piece(stack: Stack, http) -> None:
    words, intent = 50, "real-whole"
    url, headers = f"{stack.router}/v1/chat/completions", {"Idempotency-Key": intent}
    async with http.post(url, json=body(prompt_text(words, (), intent), 8), headers=headers) as answer:
        got = await answer.json()
        assert answer.status == 200, got
    assert len(got["choices"][0]["message"]["content"].split()) == 8
    assert got["usage"]["prompt_tokens"] == words + BOS_TOKENS
    outcome = await stack.outcome(http, intent)
    assert (outcome["cause"], outcome["pool"], outcome["status"]) == ("ok", POOL, 200)
    assert outcome["instance"] == answer.headers["x-tokenfleet-instance"]
    assert (outcome["prompt_tokens"], outcome["output_tokens"]) == (words + BOS_TOKENS, 8)


async def test_every_token_of_an_answer_is_a_word_however_wild_the_sampling(stack: Stack, http) -> None:
    """Whoever counts words counts tokens; a piece of a UTF-8 character would be held back by the server."""
    asked = body(prompt_text(20, (), "wild"), 200, temperature=5.0, top_k=0, top_p=1.0, min_p=0.0)
    async with http.post(f"{stack.router}/v1/chat/completions", json=asked) as answer:
        words = (await answer.json())["choices"][0]["message"]["content"].split()
    assert len(words) == 200
    assert set(words) <= set(WORDS)


async def test_a_stream_token_by_token(stack: Stack, http) -> None:
    """No usage is asked for: the counts come from llama.cpp's own timings."""
    tokens, intent = 12, "real-stream"
    async with stream(stack, http, intent, tokens) as (_, events):
        seen = [chunk async for chunk in events]
    assert seen[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert [bool(content_of(chunk)) for chunk in seen].count(True) == tokens
    assert seen[-1]["choices"][0]["finish_reason"] == "length"
    assert "usage" not in seen[-1]
    outcome = await stack.outcome(http, intent)
    assert outcome["cause"] == "ok"
    assert (outcome["prompt_tokens"], outcome["output_tokens"]) == (20 + BOS_TOKENS, tokens)
    assert outcome["ttft_ms"] > 0
    assert outcome["tpot_ms"] > 0


async def test_a_cancel_in_mid_stream_frees_the_slot(stack: Stack, http) -> None:
    intent, asked_tokens = "real-cancel", 3000
    async with stream(stack, http, intent, asked_tokens) as (answer, events):
        instance = answer.headers["x-tokenfleet-instance"]
        async for chunk in events:
            if content_of(chunk):
                break
        assert await stack.busy_slots(http, instance) == 1

    async def free() -> bool:
        return await stack.busy_slots(http, instance) == 0

    assert await until(f"a free slot of {instance}", free)
    async with http.get(f"{stack.url(instance)}/metrics") as page:
        assert "\nllamacpp:requests_processing 0\n" in await page.text()
    outcome = await stack.outcome(http, intent)
    assert (outcome["cause"], outcome["instance"]) == ("cancelled", instance)
    assert 1 <= outcome["output_tokens"] < asked_tokens


async def test_a_prefix_is_reused_as_the_engine_itself_says(stack: Stack, http) -> None:
    blocks = (1, 2)  # 512 words each, the same at each request; what follows is not
    url = f"{stack.url('us-east-0')}/v1/chat/completions"
    cached = []
    for unique in ("first", "second"):
        async with http.post(url, json=body(prompt_text(1100, blocks, unique), 2)) as answer:
            got = await answer.json()
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] == got["timings"]["cache_n"]
        cached.append(got["timings"]["cache_n"])
    assert cached[0] < 512
    assert cached[1] >= 1024
    intent = "real-prefix"
    asked = body(prompt_text(1100, blocks, "third"), 2)
    url, headers = f"{stack.router}/v1/chat/completions", {"Idempotency-Key": intent}
    async with http.post(url, json=asked, headers=headers) as answer:
        told = (await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert (await stack.outcome(http, intent))["cached_tokens"] == told


async def test_a_kill_is_a_new_boot_and_its_streams_have_failed(stack: Stack, http) -> None:
    intent = "real-kill"
    async with stream(stack, http, intent, 3000) as (answer, events):
        instance = answer.headers["x-tokenfleet-instance"]
        before = (await stack.rows(http, "endpoints"))[instance]
        seen = []
        async for chunk in events:
            if content_of(chunk) and not any(map(content_of, seen)):
                stack.kill(instance)
            seen.append(chunk)
    assert seen[-1]["error"]["code"] == 502
    outcome = await stack.outcome(http, intent)
    assert (outcome["cause"], outcome["instance"]) == ("failed", instance)
    assert outcome["instance_boot"] == before["boot"]
    assert outcome["output_tokens"] == sum(bool(content_of(chunk)) for chunk in seen)
    after = await new_boot(stack, http, instance, before["boot"])
    assert after["boot_started_at_ms"] > before["boot_started_at_ms"]


async def test_a_request_whose_engine_dies_before_it_answers_is_served_elsewhere(stack: Stack, http) -> None:
    intent = "real-retry"
    asked = body(prompt_text(2500, (), intent), 2)
    url, headers = f"{stack.router}/v1/chat/completions", {"Idempotency-Key": intent}

    async def ask() -> tuple[int, Any]:
        async with http.post(url, json=asked, headers=headers) as answer:
            return answer.status, answer.headers

    async def computing() -> str | None:
        for instance in INSTANCES:
            if await stack.busy_slots(http, instance):
                return instance
        return None

    asking = asyncio.create_task(ask())
    instance = await until("a prompt in the works", computing)
    before = (await stack.rows(http, "endpoints"))[instance]["boot"]
    stack.kill(instance)
    status, got = await asking
    assert (status, got["x-tokenfleet-attempt"]) == (200, "2")

    async def both() -> list[dict[str, Any]] | None:
        found = await stack.outcomes(http, intent)
        return found if len(found) == 2 else None

    first, second = await until("two outcomes", both)
    assert (first["cause"], first["instance"], first["instance_boot"]) == ("failed", instance, before)
    assert (second["cause"], second["instance"]) == ("ok", got["x-tokenfleet-instance"])
    await new_boot(stack, http, instance, before)


async def test_nothing_stays_open(stack: Stack, http) -> None:
    """After all of the above: one outcome for each decision, none for anything else."""

    async def closed() -> bool:
        (count,) = await stack.query(
            http,
            "SELECT (SELECT groupUniqArray(decision_id) FROM decisions) AS made, "
            "(SELECT groupArray(decision_id) FROM outcomes_raw) AS ended",
        )
        return len(count["made"]) >= 7 and sorted(count["made"]) == sorted(count["ended"])

    assert await until("an outcome for each decision", closed)


async def new_boot(stack: Stack, http: aiohttp.ClientSession, instance: str, old: str) -> dict[str, Any]:
    """The registry's row of the instance's next life, once the fleet steers by it."""

    async def there() -> dict[str, Any] | None:
        endpoint = (await stack.rows(http, "endpoints"))[instance]
        row = (await stack.rows(http, "instances")).get(instance)
        known = row is not None and row["boot"] == endpoint["boot"] and row["state"] == "ready"
        return endpoint if endpoint["boot"] != old and known else None

    return await until(f"another boot of {instance}", there)


def test_the_demo_runs_on_it_and_its_books_agree_when_an_engine_is_killed(demo) -> None:
    run = demo("--engine", "llama.cpp", "--duration", "20", "--rate", "4")
    run.wait_finished(15)
    killed = run.kill("eu-west-0")
    wait_for(
        "eu-west-0 back", lambda: (run.state() or {})["processes"]["eu-west-0"]["pid"] not in (None, killed)
    )
    summary = run.end(180)
    assert_books(summary)
    assert summary["restarts"] == {"eu-west-0": 1}
    assert summary["engine"] == "llama.cpp"
    assert summary["length_limits"] == {"prompt": 2048, "answer": 256}
    assert summary["ok"] > 0.8 * summary["offered"]
    assert set(summary["regions"]) <= {"eu-west", "us-east", "ap-south"}
    assert "prompts cut to 2,048 tokens" in run.text()


def test_where_the_wheel_is_missing_one_sentence_says_so(tmp_path: Path) -> None:
    """A module that can't be found stands for a machine without the wheel."""
    program = "import sys; sys.modules['xllamacpp'] = None; import tokenfleet.cli; tokenfleet.cli.main()"
    for command in (["engines", "--real", "1"], ["demo", "--engine", "llama.cpp", "--data", str(tmp_path)]):
        ended = subprocess.run(
            [sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 1
        assert ended.stderr.count("\n") == 1
        assert "tokenfleet[real-engine]" in ended.stderr
