"""Tables of a new format are built anew from the rollups of the last minutes."""

from __future__ import annotations

import asyncio

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from minds.windows import SPANS_MS
from schemas.topics import ROLLUPS

log = structlog.get_logger(__name__)

LOOK_BACK_MS = 3 * SPANS_MS[-1]
"""Three times the longest window: nothing older is in any table."""


WAIT_S = 20.0


class GroupInUse(RuntimeError):  # noqa: N818 - reads as what happened
    """Workers of another format still run in the group."""


async def rewind_rollups(bootstrap: str, group: str, now_ms: int) -> dict[int, int]:
    """Set the group back to the first rollup of the last 15 minutes; returns the offsets by partition.

    For a start with empty changelogs, before the group has members: Kafka refuses it while any is there, and
    static members stay for their session after a stop, so this waits. GroupInUse if one stays: two formats
    must not share a group.
    """
    tps = [TopicPartition(ROLLUPS.name, number) for number in range(ROLLUPS.partitions)]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(tps)
        found = await consumer.offsets_for_times(dict.fromkeys(tps, now_ms - LOOK_BACK_MS))
        ends = await consumer.end_offsets(tps)
        wanted = {tp: at.offset if (at := found.get(tp)) is not None else ends[tp] for tp in tps}
        committed = {tp: await consumer.committed(tp) for tp in tps}
        moved = {tp: at for tp, at in wanted.items() if (held := committed[tp]) is not None and held > at}
        if moved:
            await _commit(consumer, moved, group)
            log.info("rollups_rewound", group=group, offsets={tp.partition: at for tp, at in moved.items()})
        return {tp.partition: at for tp, at in moved.items()}
    finally:
        await consumer.stop()


async def _commit(consumer: AIOKafkaConsumer, offsets: dict[TopicPartition, int], group: str) -> None:
    ends = asyncio.get_running_loop().time() + WAIT_S
    while True:
        try:
            await consumer.commit(offsets)
            return
        except KafkaError as error:
            if asyncio.get_running_loop().time() > ends:
                raise GroupInUse(
                    f"The tables have a new format, but the group {group} still has members of the old one "
                    f"({type(error).__name__}). Stop all streams workers, then start the new ones."
                ) from None
            log.info("group_still_has_members", group=group, error=type(error).__name__, again_in_s=1)
            await asyncio.sleep(1.0)
