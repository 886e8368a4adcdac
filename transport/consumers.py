"""What aiokafka's consumers get wrong while a broker is away or has just come back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop it and close its connections.

    aiokafka cancels its pending fetches and then awaits them, so its own ``stop`` raises CancelledError while
    a broker is away. In a loop that goes on with a new consumer that would look like the caller's own
    cancellation, and end the loop for good without a word. Raises CancelledError only where the caller was
    cancelled.
    """
    task = asyncio.current_task()
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await consumer._client.close()  # the rest of what stop does
        if task is not None and task.cancelling():
            raise


async def committed_offsets(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition], *, timeout_s: float = 15.0
) -> dict[TopicPartition, int | None]:
    """The offsets that the consumer's group has committed; None only where it never has.

    aiokafka's own ``committed`` does not look at the answer's error for the whole group: where the
    coordinator has just come back, or moved, it says None, and a reader that trusts it starts from the
    beginning. This one asks again, and raises the KafkaError after ``timeout_s``.
    """
    coordinator = consumer._coordinator
    wanted: dict[str, list[int]] = {}
    for tp in partitions:
        wanted.setdefault(tp.topic, []).append(tp.partition)
    request = OffsetFetchRequest(coordinator.group_id, list(wanted.items()))
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            await coordinator.ensure_coordinator_known()
            return _offsets_in(await coordinator._send_req(request), partitions)
        except KafkaError as error:
            if not error.retriable or asyncio.get_running_loop().time() > deadline_s:
                raise
            coordinator.coordinator_dead()
            await asyncio.sleep(0.2)


def _offsets_in(answer: Any, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
    if code := getattr(answer, "error_code", 0):
        raise for_code(code)("The committed offsets can't be had now.")
    found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    for topic, each in answer.topics:
        for number, offset, _, code in each:
            if code:
                raise for_code(code)(f"The committed offset of {topic}:{number} can't be had now.")
            if offset >= 0:
                found[TopicPartition(topic, number)] = offset
    return found
