"""Several llama.cpp servers as child processes, and the list of them for whoever has to find them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StackError
from infra.llamacpp.server import model_name
from infra.ports import LOOPBACK
from infra.processes import ChildSpec
from infra.readiness import HttpReady
from sim.engines import EmulatorError, write_endpoint_list

VERSION = "v1"


@dataclass(frozen=True)
class RealEngine:
    """One server: its instance id, which is also the name of its process, and where it listens."""

    instance: str
    region: str
    port: int
    size: str = "tiny"
    host: str = LOOPBACK

    @property
    def url(self) -> str:
        """Base address of its HTTP API."""
        return f"http://{self.host}:{self.port}"

    @property
    def model(self) -> str:
        """The name that it answers to."""
        return model_name(self.size)

    @property
    def pool(self) -> str:
        """``model@version``."""
        return f"{self.model}@{VERSION}"

    def child(self, model_file: Path) -> ChildSpec:
        """How to run it; a server that dies is started again, as a new boot."""
        argv = [sys.executable, "-m", "infra.llamacpp.server", "--model-file", str(model_file)]
        argv += ["--name", self.model, "--host", self.host, "--port", str(self.port)]
        return ChildSpec(self.instance, argv, ready=HttpReady(f"{self.url}/health", 60.0), restart=True)


def write_endpoints(path: Path, engines: Iterable[RealEngine]) -> None:
    """Write the static discovery list of the telemetry source (YAML), whole or not at all.

    Raises StackError where it can't be written.
    """
    try:
        write_endpoint_list(
            path,
            [
                {
                    "instance": engine.instance,
                    "engine": "llama.cpp",
                    "url": engine.url,
                    "region": engine.region,
                    "pools": [engine.pool],
                    "served_model": engine.model,
                }
                for engine in engines
            ],
        )
    except EmulatorError as error:
        raise StackError(str(error)) from error
