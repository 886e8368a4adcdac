"""Policies to and from fleet.policy."""

from __future__ import annotations

from typing import Any

from schemas.policy import PolicyRow
from schemas.topics import POLICY
from transport.admin import ensure_topics
from transport.producer import RowProducer, start_producer
from transport.table_reader import TableReader


async def publish_policy(bootstrap: str, policy: PolicyRow) -> None:
    """Write a policy; returns when the broker has it. Raises BrokerUnavailable."""
    await ensure_topics(bootstrap)
    producer = await start_producer(bootstrap)
    try:
        await (await RowProducer(producer).put(POLICY, policy, partition_key=policy.scope))
    finally:
        await producer.stop()


async def current_policy(bootstrap: str, *, timeout_s: float = 15.0) -> dict[str, Any]:
    """The policies in force by scope, as structs of the fast path. Raises BrokerUnavailable, TimeoutError."""
    await ensure_topics(bootstrap, timeout_s=timeout_s)
    reader = TableReader(bootstrap, [POLICY])
    await reader.start()
    try:
        await reader.wait_caught_up(timeout_s)
        return {seen.row.scope: seen.row for seen in reader.view(POLICY).rows()}
    finally:
        await reader.stop()
