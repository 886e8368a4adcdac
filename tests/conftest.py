"""Fixtures that all test packages share: a real Kafka, folders, and the material beside the repository."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from infra.errors import StackError
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.jars import KAFKA_VERSION
from infra.kafka.probe import kafka_ready
from infra.kafka.server_properties import container_environment
from infra.ports import LOOPBACK, free_port

OWN_BROKER_VARIABLE = "TOKENFLEET_TEST_KAFKA"
"""`host:port` of a broker to run the tests against; it must be empty, and nothing on it is kept apart."""

REQUIRE_KAFKA_VARIABLE = "TOKENFLEET_REQUIRE_KAFKA"
"""Set to 1 where tests must not be skipped for want of a broker (CI)."""

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class KafkaAddress:
    """A broker that answers."""

    bootstrap: str
    kind: str
    """`given`, `container` or `embedded`."""


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Commands that a test runs in this process set up logging for themselves, not for the tests after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaAddress]:
    """A real Apache Kafka for the whole session; tests keep apart by the names of their topics and groups."""
    if given := os.environ.get(OWN_BROKER_VARIABLE):
        yield KafkaAddress(given, "given")
    elif _docker_answers():
        with _container() as bootstrap:
            yield KafkaAddress(bootstrap, "container")
    else:
        broker = EmbeddedKafka(tmp_path_factory.mktemp("kafka"))
        _start_or_skip(broker)
        try:
            yield KafkaAddress(broker.bootstrap, "embedded")
        finally:
            broker.stop()


@pytest.fixture
def fresh_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A started embedded broker of the test's own, to be killed and restarted at will."""
    broker = EmbeddedKafka(tmp_path / "kafka")
    _start_or_skip(broker)
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for a stack that lives as long as the session."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of traces and captures beside the repository; tests that want it are skipped without it."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    return folder


def _start_or_skip(broker: EmbeddedKafka) -> None:
    try:
        broker.start()
    except StackError as error:
        if os.environ.get(REQUIRE_KAFKA_VARIABLE) == "1":
            pytest.fail(f"{REQUIRE_KAFKA_VARIABLE}=1, but there is no Kafka: {error}")
        pytest.skip(f"no Kafka: {error}")


def _docker_answers() -> bool:
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=3)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except (DockerException, OSError):
        return False
    finally:
        client.close()


@contextmanager
def _container() -> Iterator[str]:
    """The official image with the embedded broker's own settings, on a port of this machine only."""
    from testcontainers.core.container import DockerContainer

    port = free_port()
    container = DockerContainer(f"apache/kafka:{KAFKA_VERSION}")
    # Not `with_bind_ports`: it would publish the port on every interface of this machine.
    container.ports[f"{port}/tcp"] = (LOOPBACK, port)
    for name, value in container_environment(port).items():
        container.with_env(name, value)
    with container:
        deadline_s = time.monotonic() + 90
        while not kafka_ready(port):
            if time.monotonic() > deadline_s:
                pytest.fail("the Kafka container did not answer within 90 s")
            time.sleep(0.2)
        yield f"{LOOPBACK}:{port}"
