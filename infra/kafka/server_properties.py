"""Settings of the one-node broker for a small machine: one definition for process, container and compose.

Names and defaults: https://kafka.apache.org/43/documentation.html#brokerconfigs
"""

from __future__ import annotations

from collections.abc import Mapping

NODE_ID = 1

CONTAINER_CONTROLLER_PORT = 9093

_MIB = 1024 * 1024

TUNING: Mapping[str, str] = {
    # One node: nothing can be replicated. Few partitions: each costs files, memory and start-up time.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Topics come from the registry only; a typo must fail.
    "auto.create.topics.enable": "false",
    # Consumers join at once, and a worker may have a session short enough to be replaced within seconds.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # A broker that was killed acks again after about 4 s instead of 13 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # A stack that was left alone for months still knows how far its consumers had come (one year).
    "offsets.retention.minutes": "525600",
    # Threads and buffers for two cores and a heap of 512 MiB.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "background.threads": "2",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(8 * _MIB),
    "log.cleaner.io.buffer.size": str(_MIB // 4),
    # Segments that roll often enough for compaction to have something to do; index files are preallocated.
    "log.segment.bytes": str(64 * _MIB),
    "log.index.size.max.bytes": str(_MIB),
}


def broker_settings(broker_port: int, controller_port: int, log_dir: str) -> dict[str, str]:
    """Settings of a combined broker and controller that listens on 127.0.0.1 only."""
    return {
        **_identity(f"{NODE_ID}@127.0.0.1:{controller_port}"),
        "listeners": f"PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker_port}",
        "log.dirs": log_dir,
        **TUNING,
    }


def container_environment(broker_port: int) -> dict[str, str]:
    """The same broker as environment variables of the `apache/kafka` image.

    Publish the container's `broker_port` on the same port of the host's 127.0.0.1: the broker tells its
    clients that address, and calls itself there too (transaction markers): it must hold inside and outside.
    """
    settings = {
        **_identity(f"{NODE_ID}@127.0.0.1:{CONTAINER_CONTROLLER_PORT}"),
        "listeners": (
            f"PLAINTEXT://0.0.0.0:{broker_port},CONTROLLER://127.0.0.1:{CONTAINER_CONTROLLER_PORT}"
        ),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker_port}",
        **TUNING,
    }
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}


def render(settings: Mapping[str, str]) -> str:
    """Write settings as a Java properties file (java.util.Properties: Latin-1 with escapes)."""
    return "".join(f"{name}={_escape(value)}\n" for name, value in settings.items())


def _identity(quorum_voters: str) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "controller.quorum.voters": quorum_voters,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    units = escaped.encode("utf-16-be", errors="surrogatepass")
    pairs = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in pairs)
