"""Which partition a key goes to: Kafka's own murmur2, so that any client of any language agrees."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def partition_of(key: str, partitions: int) -> int:
    """The partition of this partition key, as Kafka's default partitioner computes it."""
    return int(murmur2(key.encode()) & 0x7FFFFFFF) % partitions
