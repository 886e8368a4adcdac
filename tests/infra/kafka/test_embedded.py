"""The embedded broker against its promises, with a real Apache Kafka."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from infra.errors import StackError
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.probe import kafka_ready
from infra.ports import free_port

pytestmark = pytest.mark.kafka

TOPIC = "numbers"


async def write(bootstrap: str, numbers: range, create: bool) -> None:
    if create:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, 2, 1)])
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    for number in numbers:
        await producer.send_and_wait(TOPIC, str(number).encode())
    await producer.stop()


async def read(bootstrap: str) -> list[int]:
    """Everything in the topic, by assignment, up to the end offsets."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    partitions = [TopicPartition(TOPIC, number) for number in range(2)]
    consumer.assign(partitions)
    ends = await consumer.end_offsets(partitions)
    found: list[int] = []
    while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
        batches = await consumer.getmany(*partitions, timeout_ms=500)
        found += [int(record.value) for batch in batches.values() for record in batch]
    await consumer.stop()
    return sorted(found)


async def test_what_was_acknowledged_survives_a_kill_a_restart_and_a_new_owner(
    fresh_kafka: EmbeddedKafka,
) -> None:
    address, first_pid = fresh_kafka.bootstrap, fresh_kafka.pid
    await write(address, range(100), create=True)
    fresh_kafka.kill()
    assert fresh_kafka.pid is None
    assert not kafka_ready(fresh_kafka.port)
    fresh_kafka.start()
    assert fresh_kafka.bootstrap == address
    assert fresh_kafka.pid not in (None, first_pid)
    assert await read(address) == list(range(100))
    await write(address, range(100, 150), create=False)
    fresh_kafka.stop()
    cluster_id = (fresh_kafka.data_dir / "cluster.id").read_text()
    with EmbeddedKafka(fresh_kafka.data_dir) as again:
        assert await read(again.bootstrap) == list(range(150))
    assert (fresh_kafka.data_dir / "cluster.id").read_text() == cluster_id


def test_it_listens_on_loopback_only_and_shares_its_folder_with_nobody(fresh_kafka: EmbeddedKafka) -> None:
    listening = [
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(fresh_kafka.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}
    rival = EmbeddedKafka(fresh_kafka.data_dir)
    with pytest.raises(StackError, match=r"is in use by another stack \(process \d+\)"):
        rival.start()
    with pytest.raises(
        StackError, match=rf"Port {fresh_kafka.port} on 127\.0\.0\.1, wanted for Kafka, is already"
    ):
        EmbeddedKafka(fresh_kafka.data_dir.parent / "other", port=fresh_kafka.port).start()
    pid = fresh_kafka.pid
    fresh_kafka.start()
    assert fresh_kafka.pid == pid


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_no_broker_outlives_an_owner_that_was_killed(fresh_kafka: EmbeddedKafka) -> None:
    fresh_kafka.stop()  # only its folder, already formatted, is wanted here
    owner = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from infra.kafka.embedded import EmbeddedKafka
        kafka = EmbeddedKafka(Path({str(fresh_kafka.data_dir)!r}))
        kafka.start()
        print("pid", kafka.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    answer = subprocess.run([sys.executable, "-c", owner], capture_output=True, text=True, timeout=120)
    pid = int(answer.stdout.split("pid ")[-1])
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"the broker {pid} is still there"
        time.sleep(0.05)
    fresh_kafka.start()  # and neither the folder nor the port is left blocked


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(fresh_kafka: EmbeddedKafka) -> None:
    fresh_kafka.stop()
    meta = fresh_kafka.data_dir / "kafka" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(StackError, match="Kafka ended while starting") as error:
        fresh_kafka.start()
    assert "node" in str(error.value)
    assert fresh_kafka.pid is None
    assert set(psutil.Process().children(recursive=True)) <= before


def test_an_address_before_the_first_start_is_refused_and_a_dead_port_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no port before it is started"):
        EmbeddedKafka(tmp_path).bootstrap  # noqa: B018
    assert EmbeddedKafka(tmp_path, port=9092).bootstrap == "127.0.0.1:9092"
    assert not kafka_ready(free_port())
