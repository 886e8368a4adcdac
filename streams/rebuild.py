"""Tables built anew: from the rollups of the last minutes, or with their topics from the raw events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from minds.windows import SPANS_MS
from schemas.topics import INSTANCES, LEASES, OUTCOMES, QUOTAS, REGIONS, ROLLUPS, TELEMETRY, TOPICS, Topic
from transport.admin import connect_admin, ensure_topics
from transport.consumers import committed_offsets, stop_consumer
from transport.table_reader import TableReader

log = structlog.get_logger(__name__)

LOOK_BACK_MS = 3 * SPANS_MS[-1]
"""Three times the longest window: nothing older is in any table."""
OF_POOLS = (ROLLUPS, INSTANCES, REGIONS, QUOTAS, LEASES)
"""Topics whose partitions are the pools' owners; their counts change together."""
RAW = (OUTCOMES, TELEMETRY)
CLOCK_BOUND_MS = 5_000.0
WAIT_S = 20.0


class GroupInUse(RuntimeError):  # noqa: N818 - reads as what happened
    """Workers still run in a group that must have no members."""


class CannotRebuild(RuntimeError):  # noqa: N818 - reads as what happened
    """Not now; the sentence says why, and what to do."""


class LayoutDiffers(RuntimeError):  # noqa: N818 - reads as what happened
    """The topics of pools have another number of partitions than this code."""


class TablesOutdated(RuntimeError):  # noqa: N818 - reads as what happened
    """Workers of another format ran since the tables of this one were last written."""


# ------------------------------------------------------------------------------------ before a worker starts


async def check_layout(bootstrap: str, changelogs: Sequence[NewTopic]) -> None:
    """Raise LayoutDiffers where a topic of pools has another number of partitions than the code says."""
    wanted = {topic.name: topic.partitions for topic in OF_POOLS}
    wanted |= {topic.name: topic.num_partitions for topic in changelogs}
    async with _admin(bootstrap) as admin:
        for described in await admin.describe_topics(list(wanted)):
            name, there = described["topic"], len(described["partitions"])
            if there and there != wanted[name]:
                raise LayoutDiffers(
                    f"{name} has {there} partitions, but this worker is made for {wanted[name]}. Set "
                    f"TOKENFLEET_POOL_PARTITIONS={there}, or stop all workers and change the topics with "
                    "tokenfleet streams rebuild --from-raw."
                )


async def check_format(bootstrap: str, app_id: str, changelogs: Sequence[str]) -> None:
    """Raise TablesOutdated where another format's changelog is newer than these: a rollback in mid-way.

    The group then stands where the other format left it, and what lies between would be in no table.
    """
    stems = tuple(f"{app_id}-{name}-v" for name in ("instances", "regions"))
    async with _admin(bootstrap) as admin:
        others = [n for n in await admin.list_topics() if n.startswith(stems) and n not in changelogs]
    if not others:
        return
    mine, theirs = await _newest_ms(bootstrap, changelogs), await _newest_ms(bootstrap, others)
    if mine is not None and theirs is not None and theirs > mine:
        raise TablesOutdated(
            f"Workers of another format wrote their tables after these were written ({', '.join(others)}). "
            "Stop all workers, run tokenfleet streams rebuild with this version, and start them."
        )


async def rewind_rollups(bootstrap: str, group: str, now_ms: int) -> dict[int, int]:
    """Set the group back to the first rollup of the last 15 minutes; returns the offsets by partition.

    For a start with empty changelogs, before the group has members: Kafka refuses it while any is there, and
    static members stay for their session after a stop, so this waits. GroupInUse if one stays: two formats
    must not share a group.
    """
    moved = await _rewind(bootstrap, group, (ROLLUPS,), now_ms)
    return {tp.partition: at for tp, at in moved.items()}


# ---------------------------------------------------------------------------------------- with all stopped


async def rebuild_tables(bootstrap: str, app_id: str, changelogs: Sequence[NewTopic], now_ms: int) -> None:
    """Empty the changelogs of this code's format, so that the next start builds its tables from the rollups.

    Raises GroupInUse while workers run.
    """
    await _no_members(bootstrap, (app_id,))
    await _anew(bootstrap, (), changelogs)
    await _rewind(bootstrap, app_id, (ROLLUPS,), now_ms)


async def rebuild_from_raw(
    bootstrap: str, app_id: str, combiner_group: str, changelogs: Sequence[NewTopic], now_ms: int
) -> None:
    """Make the topics of pools anew with this code's number of partitions, and refill them.

    The combiners are set back by 15 minutes of raw events, so the windows come out as they were. Raises
    GroupInUse while workers run, and CannotRebuild while a lease of the old layout may still be in use: the
    rows that say so are about to go.
    """
    await _no_members(bootstrap, (app_id, combiner_group))
    left_ms = await _leased_until_ms(bootstrap) - now_ms
    if left_ms > 0:
        raise CannotRebuild(
            f"Leases that were granted still run for {left_ms / 1000:.0f} s; leave the workers stopped, and "
            "run this again then."
        )
    await _anew(bootstrap, OF_POOLS, changelogs)
    await _rewind(bootstrap, combiner_group, RAW, now_ms)


async def _leased_until_ms(bootstrap: str) -> float:
    reader = TableReader(bootstrap, [LEASES])
    await reader.start()
    try:
        await reader.wait_caught_up(WAIT_S)
        ends = [seen.row.as_of_ms + seen.row.duration_ms for seen in reader.view(LEASES).rows()]
        return max(ends, default=-CLOCK_BOUND_MS) + CLOCK_BOUND_MS
    finally:
        await reader.stop()


async def _no_members(bootstrap: str, groups: Iterable[str]) -> None:
    """Wait until nobody is in these groups; a stopped static member stays for its session."""
    ends = asyncio.get_running_loop().time() + WAIT_S
    async with _admin(bootstrap) as admin:
        for group in groups:
            while (members := await _members(admin, group)) != 0:
                if asyncio.get_running_loop().time() > ends:
                    if members is None:
                        raise CannotRebuild(
                            f"The broker does not say who is in the group {group}; try again."
                        )
                    raise GroupInUse(
                        f"The group {group} still has {members} members. Stop all streams workers first."
                    )
                await asyncio.sleep(1.0)


async def _members(admin: AIOKafkaAdminClient, group: str) -> int | None:
    """How many are in a group; None while its coordinator is not available."""
    try:
        for answer in await admin.describe_consumer_groups([group]):
            for _, _, _, _, _, members, *_ in answer.groups:
                return len(members)
    except KafkaError as error:
        if not error.retriable:
            raise
        return None
    return 0


async def _anew(bootstrap: str, topics: Sequence[Topic], extra: Sequence[NewTopic]) -> None:
    """Delete these topics, and make them again."""
    names = {topic.name for topic in topics} | {topic.name for topic in extra}
    async with _admin(bootstrap) as admin:
        await admin.delete_topics([name for name in names if name in await admin.list_topics()])
        ends = asyncio.get_running_loop().time() + WAIT_S
        while names & set(await admin.list_topics()):
            if asyncio.get_running_loop().time() > ends:
                raise CannotRebuild(f"The broker has not deleted {', '.join(sorted(names))}; try again.")
            await asyncio.sleep(0.2)
    await ensure_topics(bootstrap, TOPICS, extra=extra)
    log.info("topics_made_anew", topics=sorted(names))


async def _rewind(
    bootstrap: str, group: str, topics: Sequence[Topic], now_ms: int
) -> dict[TopicPartition, int]:
    """Commit for the group where the last 15 minutes of these topics begin, where it is further."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        tps = [TopicPartition(t.name, number) for t in topics for number in await _partitions(consumer, t)]
        consumer.assign(tps)
        found = await consumer.offsets_for_times(dict.fromkeys(tps, now_ms - LOOK_BACK_MS))
        ends = await consumer.end_offsets(tps)
        wanted = {tp: at.offset if (at := found.get(tp)) is not None else ends[tp] for tp in tps}
        committed = await committed_offsets(consumer, tps)
        moved = {tp: at for tp, at in wanted.items() if (held := committed[tp]) is not None and held > at}
        if moved:
            await _commit(consumer, moved, group)
            said = {f"{tp.topic}:{tp.partition}": at for tp, at in moved.items()}
            log.info("group_rewound", group=group, offsets=said)
        return moved
    finally:
        await stop_consumer(consumer)


async def _partitions(consumer: AIOKafkaConsumer, topic: Topic) -> list[int]:
    return sorted(await consumer._client._wait_on_metadata(topic.name) or ())


async def _commit(consumer: AIOKafkaConsumer, offsets: dict[TopicPartition, int], group: str) -> None:
    ends = asyncio.get_running_loop().time() + WAIT_S
    while True:
        try:
            await consumer.commit(offsets)
            return
        except KafkaError as error:
            if asyncio.get_running_loop().time() > ends:
                raise GroupInUse(
                    f"The tables are to be built anew, but the group {group} still has members "
                    f"({type(error).__name__}). Stop all streams workers, then start the new ones."
                ) from None
            log.info("group_still_has_members", group=group, error=type(error).__name__, again_in_s=1)
            await asyncio.sleep(1.0)


async def _newest_ms(bootstrap: str, topics: Iterable[str]) -> int | None:
    """The time stamp of the newest record; None where there is none."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        tps = [
            TopicPartition(name, number)
            for name in topics
            for number in await consumer._client._wait_on_metadata(name) or ()
        ]
        consumer.assign(tps)
        ends = {tp: end for tp, end in (await consumer.end_offsets(tps)).items() if end > 0}
        if not ends:
            return None
        consumer.assign(list(ends))
        for tp, end in ends.items():
            consumer.seek(tp, end - 1)  # compaction keeps the last record
        newest: int | None = None
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while ends and asyncio.get_running_loop().time() < deadline:
            for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                newest = max([newest or 0, *(record.timestamp for record in records)])
                ends.pop(tp, None)
        return newest
    finally:
        await stop_consumer(consumer)


@asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = await connect_admin(bootstrap)
    try:
        yield admin
    finally:
        await admin.close()
