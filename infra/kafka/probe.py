"""Ask a Kafka broker whether it can do work, by its own protocol: an open port says little."""

from __future__ import annotations

import asyncio
import logging

from infra.blocking import run_blocking
from infra.ports import port_answers


def kafka_ready(port: int, timeout_s: float = 5.0) -> bool:
    """Say whether the one-node broker on 127.0.0.1:`port` serves clients.

    True when it lists itself as a live broker (it is not fenced) and every partition has a leader, which
    after a crash comes seconds after the port opens.
    """
    # The port first: the client logs each refused connection, and that is normal while a broker starts.
    return port_answers(port) and run_blocking(lambda: _serves_clients(port, timeout_s))


async def _serves_clients(port: int, timeout_s: float) -> bool:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import KafkaError

    client_log = logging.getLogger("aiokafka")
    level = client_log.level
    client_log.setLevel(logging.CRITICAL)
    admin = AIOKafkaAdminClient(
        bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=int(timeout_s * 1000)
    )
    try:
        async with asyncio.timeout(timeout_s):
            await admin.start()
            cluster = await admin.describe_cluster()
            if not cluster["brokers"]:
                return False
            names = await admin.list_topics()
            topics = await admin.describe_topics(list(names)) if names else []
            return all(partition["leader"] >= 0 for topic in topics for partition in topic["partitions"])
    except (KafkaError, OSError, TimeoutError):
        return False
    finally:
        await admin.close()
        client_log.setLevel(level)
