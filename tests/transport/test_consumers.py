"""A consumer's own cancelled fetches are not its caller's cancellation, and "loading" is not "never"."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, GroupLoadInProgressError

from transport.consumers import committed_offsets, stop_consumer


class Client:
    closed = False

    async def close(self) -> None:
        self.closed = True


async def away() -> None:
    """As aiokafka's ``stop`` ends while a fetch waits for a broker that is away."""
    fetch = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    fetch.cancel()
    await fetch


async def test_it_ends_and_the_caller_goes_on() -> None:
    client = Client()
    consumer: Any = SimpleNamespace(stop=away, _client=client)
    await stop_consumer(consumer)
    assert client.closed


async def test_the_callers_own_cancellation_is_passed_on() -> None:
    client = Client()
    consumer: Any = SimpleNamespace(stop=lambda: asyncio.sleep(60), _client=client)
    task = asyncio.create_task(stop_consumer(consumer))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.closed


class Coordinator:
    """Answers an offset request as Kafka does from its version 2 on: errors of the group stand beside."""

    group_id = "g"

    def __init__(self, *answers: tuple[list[Any], int]) -> None:
        self.answers = list(answers)
        self.marked_dead = 0

    async def ensure_coordinator_known(self) -> None:
        return

    def coordinator_dead(self) -> None:
        self.marked_dead += 1

    async def _send_req(self, request: object) -> Any:
        topics, error_code = self.answers.pop(0)
        return SimpleNamespace(topics=topics, error_code=error_code)


A, B = TopicPartition("t", 0), TopicPartition("t", 1)
HELD = [("t", [(0, 7, "", 0), (1, -1, "", 0)])]
LOADING, NOT_AUTHORIZED = 14, 30


async def test_a_group_that_loads_is_asked_again() -> None:
    coordinator = Coordinator(([], LOADING), ([("t", [(0, -1, "", LOADING)])], 0), (HELD, 0))
    consumer: Any = SimpleNamespace(_coordinator=coordinator)
    assert await committed_offsets(consumer, [A, B]) == {A: 7, B: None}
    assert coordinator.marked_dead == 2


async def test_other_errors_and_endless_loading_are_raised() -> None:
    consumer: Any = SimpleNamespace(_coordinator=Coordinator(([], NOT_AUTHORIZED)))
    with pytest.raises(GroupAuthorizationFailedError):
        await committed_offsets(consumer, [A])
    consumer = SimpleNamespace(_coordinator=Coordinator(([], LOADING), ([], LOADING)))
    with pytest.raises(GroupLoadInProgressError):
        await committed_offsets(consumer, [A], timeout_s=0.1)
