"""Topics made from the registry, and waiting for a broker that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from schemas.topics import TOPICS, Topic
from transport.errors import BrokerUnavailable

log = structlog.get_logger(__name__)


async def connect_admin(bootstrap: str, *, timeout_s: float = 15.0) -> AIOKafkaAdminClient:
    """An admin client once the broker answers; raises BrokerUnavailable after ``timeout_s``."""
    loop = asyncio.get_running_loop()
    deadline, detail = loop.time() + timeout_s, ""
    while True:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=10_000)
        try:
            await asyncio.wait_for(admin.start(), max(0.1, deadline - loop.time()))
            return admin
        except (KafkaError, OSError, TimeoutError) as error:
            detail = type(error).__name__
            await admin.close()
        if loop.time() + 0.3 >= deadline:
            raise BrokerUnavailable(bootstrap, timeout_s, detail)
        await asyncio.sleep(0.3)


async def ensure_topics(
    bootstrap: str,
    topics: Sequence[Topic] = TOPICS,
    *,
    extra: Sequence[NewTopic] = (),
    replication: int = 1,
    timeout_s: float = 15.0,
) -> list[str]:
    """Create what is missing of the registry (and ``extra``, such as changelogs); returns the new names.

    Topics that are there already are left as they are; a wrong partition count is logged, never changed here.
    """
    admin = await connect_admin(bootstrap, timeout_s=timeout_s)
    try:
        there = set(await admin.list_topics())
        wanted = [
            NewTopic(t.name, t.partitions, replication, topic_configs=t.config())
            for t in topics
            if t.name not in there
        ]
        wanted += [topic for topic in extra if topic.name not in there]
        if wanted:
            await _create(admin, wanted)
        known = {t.name: t.partitions for t in topics} | {t.name: t.num_partitions for t in extra}
        for described in await admin.describe_topics([name for name in known if name in there] or None):
            count, name = len(described["partitions"]), described["topic"]
            if name in known and count != known[name]:
                log.warning("topic_partitions_differ", topic=name, there=count, registry=known[name])
        return [topic.name for topic in wanted]
    finally:
        await admin.close()


async def _create(admin: AIOKafkaAdminClient, wanted: list[NewTopic]) -> None:
    """Several services may create at once: a topic that is there by now is as good as made."""
    try:
        response = await admin.create_topics(wanted)
    except TopicAlreadyExistsError:
        return
    for name, code, *rest in response.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            detail = rest[0] if rest else error.__name__
            raise RuntimeError(f"Kafka refused to create the topic {name}: {detail}.")
