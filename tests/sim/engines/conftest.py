"""A client for emulated instances, and small helpers that the HTTP tests share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from sim.engines import EmulatedInstance


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
def chat_body() -> Callable[..., dict[str, Any]]:
    def make(tokens: int, content: str = "hello", *, stream: bool = True) -> dict[str, Any]:
        return {
            "model": "m",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }

    return make


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait until a condition on an instance's state holds; fails with the last state otherwise."""

    async def wait(instance: EmulatedInstance, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for _ in range(1_000):
            state = instance.state()
            if holds(state):
                return state
            await asyncio.sleep(0.005)
        raise AssertionError(f"the condition did not come true; the last state was {state}")

    return wait
