"""One-node Apache Kafka (KRaft) as a child process, with all that it writes under one folder."""

from __future__ import annotations

import base64
import fcntl
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

import structlog

from infra.errors import StackError
from infra.kafka.jars import Progress, kafka_class_path
from infra.kafka.java import find_java
from infra.kafka.probe import kafka_ready
from infra.kafka.server_properties import broker_settings, render
from infra.ports import LOOPBACK, check_port_free, free_port
from infra.processes import describe_exit
from infra.spawn import ChildProcess, log_tail, spawn

_log = structlog.get_logger(__name__)

_LOG4J_CONFIG = Path(__file__).with_name("log4j2.properties")
_LOG_FOLDER = "kafka"
"""Kafka's `log.dirs`, relative to the data folder: an absolute path that has a comma would be read as two."""

_FORMAT_TIMEOUT_S = 60.0
_POLL_S = 0.1
_JVM_OPTIONS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # would leave files in the machine's temporary folder after a SIGKILL
    "-Djava.awt.headless=true",
)


class EmbeddedKafka:
    """Real Apache Kafka on 127.0.0.1 that dies with this process; its data stays in `data_dir`.

    The port is `port`, or a free one that is kept for the life of this object, so that clients find the
    broker again after a restart. All methods block and raise `StackError`. Not thread-safe.
    """

    def __init__(self, data_dir: Path, port: int | None = None, start_timeout_s: float = 60.0) -> None:
        self.data_dir = data_dir.resolve()
        self.start_timeout_s = start_timeout_s
        self._fixed_port = port
        self._port = port
        self._controller_port: int | None = None
        self._process: ChildProcess | None = None
        self._claim: IO[str] | None = None
        self._served_before = False

    def __enter__(self) -> EmbeddedKafka:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """TCP port of the broker; raises `StackError` where none was fixed and it never started."""
        if self._port is None:
            raise StackError("The embedded Kafka has no port before it is started.")
        return self._port

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the broker while it runs, else None."""
        return self._process.pid if self._process is not None and not self._process.exited() else None

    @property
    def logs_dir(self) -> Path:
        """Folder of the broker's logs: `kafka.out` (its console) and `kafka.log`."""
        return self.data_dir / "logs"

    def start(self, progress: Progress | None = None) -> None:
        """Start the broker, formatting its storage the first time, and return when it serves clients.

        Does nothing when it runs already. `progress` hears of the jars when they have to be fetched first.
        """
        if self.pid is not None:
            return
        java = find_java()
        class_path = kafka_class_path(progress=progress)
        try:
            self.logs_dir.mkdir(parents=True, exist_ok=True)
            (self.data_dir / "tmp").mkdir(exist_ok=True)
        except OSError as error:
            raise StackError(
                f"Kafka's data folder {self.data_dir} cannot be used: {error.strerror}."
            ) from error
        self._take_ports()
        self._claim_data_dir()
        try:
            self._write_settings()
            jvm = [str(java.program), *_JVM_OPTIONS, *self._system_properties(), "-cp", class_path]
            self._format_storage(jvm)
            self._process = spawn(
                "Kafka", [*jvm, "kafka.Kafka", "server.properties"], self._console_log, cwd=self.data_dir
            )
            self._await_ready()
        except BaseException:
            self.kill()
            if not self._served_before:
                # Nobody knows the ports yet; they may be what was wrong.
                self._port, self._controller_port = self._fixed_port, None
            raise
        self._served_before = True
        _log.info("kafka ready", bootstrap=self.bootstrap, java=java.version, java_from=java.origin)

    def stop(self, grace_s: float = 15.0) -> None:
        """Shut the broker down in good order, by force after `grace_s` seconds. May be called twice."""
        self._end(lambda process: process.stop(grace_s))

    def kill(self) -> None:
        """SIGKILL the broker, as a power cut would (fault tests). What was acknowledged is kept."""
        self._end(lambda process: process.kill())

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same port with the same data."""
        self.stop()
        self.start()

    @property
    def _console_log(self) -> Path:
        return self.logs_dir / "kafka.out"

    def _system_properties(self) -> list[str]:
        return [
            f"-Dlog4j2.configurationFile={_LOG4J_CONFIG.as_uri()}",
            f"-Dkafka.logs.dir={self.logs_dir}",
            f"-Djava.io.tmpdir={self.data_dir / 'tmp'}",  # native compression libraries are unpacked there
        ]

    def _take_ports(self) -> None:
        if self._port is None:
            self._port = free_port()
        check_port_free(self._port, "Kafka")
        while self._controller_port is None or self._controller_port == self._port:
            self._controller_port = free_port()
        check_port_free(self._controller_port, "Kafka's controller")

    def _claim_data_dir(self) -> None:
        claim = (self.data_dir / "in-use").open("a+")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when this process ends
        except OSError as error:
            claim.seek(0)
            owner = claim.read().strip() or "unknown"
            claim.close()
            raise StackError(
                f"Kafka's data folder {self.data_dir} is in use by another stack (process {owner}); "
                "stop that one or choose another folder."
            ) from error
        claim.truncate(0)
        claim.write(str(os.getpid()))
        claim.flush()
        self._claim = claim

    def _write_settings(self) -> None:
        assert self._port is not None
        assert self._controller_port is not None
        settings = broker_settings(self._port, self._controller_port, _LOG_FOLDER)
        (self.data_dir / "server.properties").write_text(render(settings), encoding="ascii")

    def _format_storage(self, jvm: list[str]) -> None:
        if (self.data_dir / _LOG_FOLDER / "meta.properties").exists():
            return
        id_file = self.data_dir / "cluster.id"
        if not id_file.exists():
            id_file.write_text(_new_cluster_id(), encoding="ascii")
        arguments = ["format", "--ignore-formatted", "-t", id_file.read_text(encoding="ascii").strip()]
        tool = spawn(
            "Kafka's storage tool",
            [*jvm, "kafka.tools.StorageTool", *arguments, "-c", "server.properties"],
            self._console_log,
            cwd=self.data_dir,
        )
        finished = tool.wait(_FORMAT_TIMEOUT_S)
        status = tool.kill()
        if not finished or status != 0:
            raise StackError(
                f"Kafka's storage in {self.data_dir} could not be formatted "
                f"({describe_exit(status)}); the end of {self._console_log}:\n{log_tail(self._console_log)}"
            )

    def _await_ready(self) -> None:
        process = self._process
        assert process is not None
        deadline_s = time.monotonic() + self.start_timeout_s
        while True:
            if process.exited():
                raise StackError(
                    f"Kafka ended while starting ({describe_exit(process.reap())}); {self._ends()}"
                )
            if kafka_ready(self.port):
                return
            if time.monotonic() > deadline_s:
                raise StackError(f"Kafka did not answer within {self.start_timeout_s:g} s; {self._ends()}")
            time.sleep(_POLL_S)

    def _ends(self) -> str:
        kafka_log = self.logs_dir / "kafka.log"
        return (
            f"the end of {self._console_log}:\n{log_tail(self._console_log, 8)}\n"
            f"and of {kafka_log}:\n{log_tail(kafka_log, 8)}"
        )

    def _end(self, how: Callable[[ChildProcess], int]) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                how(process)
        finally:
            if self._claim is not None:
                self._claim.close()
                self._claim = None


def _new_cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64 without padding, not starting with a dash."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id
