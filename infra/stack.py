"""The local stack: broker, engines, source, streams, routers and sink, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from infra.engines import engine_children, engines_in_words
from infra.errors import StackError
from infra.kafka.embedded import EmbeddedKafka
from infra.layout import Layout
from infra.policies import PolicyFileError, load_policy, publish_policy
from infra.processes import ChildSpec, Supervisor
from infra.readiness import HttpReady
from transport.admin import ensure_topics

OnStep = Callable[[str, str], None]
"""Called with a part's name and what is known of it, as each part becomes ready."""

STATE_FILE = "stack.json"


class Stack:
    """All parts of one layout, as child processes of this one.

    Restarts what dies by itself. Writes ``stack.json`` (addresses and pids) into the data folder. Raises
    StackError or transport.errors.BrokerUnavailable from ``start``; whatever was started by then is ended.
    """

    def __init__(self, layout: Layout, on_step: OnStep | None = None) -> None:
        self.layout = layout
        self._on_step = on_step or (lambda name, what: None)
        self._supervisor = Supervisor(layout.data_dir)
        self._kafka: EmbeddedKafka | None = None
        self._kafka_restarts = 0
        self._lock: IO[str] | None = None
        self.bootstrap = layout.kafka or ""

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def clickhouse_url(self) -> str:
        """Where SQL is answered: the sink's read-only endpoint, or the user's own server."""
        return self.layout.clickhouse or self.layout.url("sink")

    def start(self) -> None:
        """Start everything and return when every part is ready."""
        self._take_folder()
        engines = engine_children(self.layout, self._folder("engines"), self._endpoints_file())
        self._start_kafka()
        self._supervisor.start_many(engines)
        self._on_step("engines", engines_in_words(self.layout))
        asyncio.run(self._prepare_topics())
        sink, source = self._spec_sink(), self._spec_source()
        streams = self._spec_streams()
        routers = [self._spec_router(name, entry) for name, entry in self.layout.routers.items()]
        self._supervisor.start_many([sink, source, streams, *routers])
        self._on_step("source", f"scrapes them, {self.layout.url('source-0')}")
        self._on_step("streams", f"Faust worker, {self.layout.url('streams-0')}")
        for name, entry in self.layout.routers.items():
            self._on_step(name, f"OpenAI API for entry {entry}, {self.layout.url(name)}")
        self._on_step("sink", f"ClickHouse, {self.clickhouse_url}")
        self.write_state()

    def stop(self) -> None:
        """End every part, in reverse order; a second call does nothing."""
        self._supervisor.stop_all()
        if self._kafka is not None:
            self._kafka.stop()
            self._kafka = None
        with contextlib.suppress(OSError):
            (self.layout.data_dir / STATE_FILE).unlink()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def look_after(self) -> None:
        """To be called about once a second: starts a dead broker again and brings ``stack.json`` up to date.

        Raises StackError where a part is gone for good.
        """
        if self._kafka is not None and self._kafka.pid is None:
            self._kafka.start()
            self._kafka_restarts += 1
        self._supervisor.check()
        self.write_state()

    def write_state(self) -> None:
        """Write addresses, pids and restarts to ``stack.json``, for tools and people."""
        children = {
            child.name: {"pid": child.pid, "restarts": child.restarts} for child in self._supervisor.children
        }
        if self._kafka is not None:
            children["kafka"] = {"pid": self._kafka.pid, "restarts": self._kafka_restarts}
        state = {
            "kafka": self.bootstrap,
            "clickhouse": self.clickhouse_url,
            "urls": {name: self.layout.url(name) for name in self.layout.ports if name != "kafka"},
            "processes": children,
        }
        path = self.layout.data_dir / STATE_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state, indent=2) + "\n")
        temporary.replace(path)

    def restarts(self) -> dict[str, int]:
        """How often each part had to be started again."""
        counts = {child.name: child.restarts for child in self._supervisor.children}
        counts["kafka"] = self._kafka_restarts
        return {name: count for name, count in counts.items() if count}

    def _take_folder(self) -> None:
        folder = self.layout.data_dir
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("w")
        except OSError as error:
            raise StackError(f"The data folder {folder} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise StackError(
                f"Another stack is running on the data folder {folder}; stop it, or give this one its own "
                "folder with --data."
            ) from None

    def _start_kafka(self) -> None:
        if self.layout.kafka is not None:
            self._on_step("kafka", f"yours, {self.bootstrap}")
            return
        self._kafka = EmbeddedKafka(self.layout.data_dir / "kafka", port=self.layout.ports["kafka"])
        self._kafka.start(progress=self._fetching)
        self.bootstrap = self._kafka.bootstrap
        self._on_step("kafka", f"Apache Kafka, {self.bootstrap}")

    def _fetching(self, done: int, total: int) -> None:
        if done == total:
            self._on_step("fetched", f"{total} jars of Apache Kafka")

    async def _prepare_topics(self) -> None:
        try:
            policy = load_policy(self.layout.policy)
        except PolicyFileError as error:
            raise StackError(str(error)) from error
        made = await ensure_topics(self.bootstrap)
        self._on_step("topics", f"{len(made)} made from the registry" if made else "all there already")
        await publish_policy(self.bootstrap, policy)
        self._on_step("policy", self.layout.policy.name)

    # --------------------------------------------------------------------------------- the children

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tokenfleet", *arguments]

    def _serving(self, name: str) -> list[str]:
        return ["--host", "127.0.0.1", "--port", str(self.layout.ports[name])]

    def _spec_source(self) -> ChildSpec:
        argv = self._command("source", "--config", str(self._endpoints_file()), "--kafka", self.bootstrap)
        argv += ["--id", "source-0", *self._serving("source-0")]
        return ChildSpec(
            "source-0", argv, ready=HttpReady(self.layout.url("source-0") + "/readyz"), restart=True
        )

    def _spec_streams(self) -> ChildSpec:
        argv = self._command("streams", "--kafka", self.bootstrap, "--worker-id", "streams-0")
        argv += ["--data", str(self._folder("streams-0")), *self._serving("streams-0")]
        return ChildSpec(
            "streams-0", argv, ready=HttpReady(self.layout.url("streams-0") + "/readyz", 60.0), restart=True
        )

    def _spec_router(self, name: str, entry: str) -> ChildSpec:
        argv = self._command("router", "--kafka", self.bootstrap, "--id", name, "--entry-region", entry)
        argv += self._serving(name)
        return ChildSpec(
            name, argv, ready=HttpReady(self.layout.url(name) + "/readyz"), restart=True, stop_grace_s=15.0
        )

    def _spec_sink(self) -> ChildSpec:
        argv = self._command("sink", "--kafka", self.bootstrap, *self._serving("sink"))
        if self.layout.clickhouse is not None:
            argv += ["--clickhouse", self.layout.clickhouse]
        else:
            argv += ["--data", str(self._folder("clickhouse"))]
        return ChildSpec(
            "sink", argv, ready=HttpReady(self.layout.url("sink") + "/readyz", 60.0), restart=True
        )

    def _folder(self, name: str) -> Path:
        folder = self.layout.data_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _endpoints_file(self) -> Path:
        return self._folder("engines") / "endpoints.yaml"
