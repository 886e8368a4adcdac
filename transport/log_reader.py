"""Reading the log without a group: for tools that look at records by themselves."""

from __future__ import annotations

import asyncio
from typing import Literal

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from transport.consumers import stop_consumer
from transport.errors import BrokerUnavailable


async def start_log_reader(
    bootstrap: str, *, offset_reset: Literal["earliest", "none"] = "none", timeout_s: float = 15.0
) -> AIOKafkaConsumer:
    """A started consumer with nothing assigned; the caller stops it.

    ``offset_reset``: what a seek to an offset that is gone does: ``none`` raises OffsetOutOfRangeError.
    Raises BrokerUnavailable after ``timeout_s``.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset=offset_reset,
        request_timeout_ms=15_000,
    )
    try:
        await asyncio.wait_for(consumer.start(), timeout_s)
    except (KafkaError, OSError, TimeoutError) as error:
        await stop_consumer(consumer)
        raise BrokerUnavailable(bootstrap, timeout_s, type(error).__name__) from error
    return consumer


async def partitions_of(consumer: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
    """The partitions that a topic has now, in order; none where it does not exist."""
    known = await consumer._client._wait_on_metadata(topic) or set()
    return [TopicPartition(topic, number) for number in sorted(known)]
