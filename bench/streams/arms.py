"""What is measured: this app's streams worker, and the three peers, each as a process on one broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import infra
from infra.ports import free_port

PEERS = Path(__file__).parent / "peers"
DIE_WITH_PARENT = Path(infra.__file__).with_name("die_with_parent.py")
Row = tuple[str, int, int, int]
"""Instance, count, ok, tokens."""


class _Window(msgspec.Struct):
    attempts: int = 0
    ok: int = 0
    output_tokens: int = 0


class _OurRow(msgspec.Struct):
    instance: str
    windows: list[_Window] = []


class _PeerRow(msgspec.Struct):
    key: str
    n: int
    ok: int
    tokens: int


_OURS = msgspec.json.Decoder(_OurRow)
_THEIRS = msgspec.json.Decoder(_PeerRow)


def our_row(key: bytes | None, value: bytes | None) -> Row | None:
    """The figures of an instance row's five minutes; None for claims and tombstones."""
    if value is None or key == b"__claim__":
        return None
    row = _OURS.decode(value)
    five = row.windows[2] if row.windows else _Window()
    return row.instance, five.attempts, five.ok, five.output_tokens


def peer_row(key: bytes | None, value: bytes | None) -> Row | None:
    """A peer's row."""
    if value is None:
        return None
    row = _THEIRS.decode(value)
    return row.key, row.n, row.ok, row.tokens


@dataclass
class Arm:
    """One implementation: how it is started, where it reads and writes, how its rows read."""

    name: str
    source: str
    sink: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    row: Callable[[bytes | None, bytes | None], Row | None] = peer_row
    log: Path = Path("/dev/null")
    port: int | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        with self.log.open("ab") as log:
            # Whoever ends the benchmark ends its arms too.
            command = [sys.executable, "-I", "-S", str(DIE_WITH_PARENT), str(os.getpid()), *self.command]
            self.process = subprocess.Popen(
                command, env=os.environ | self.environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Of the arm's first process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} is not started.")
        return self.process.pid

    def check(self) -> None:
        """RuntimeError with the end of its log where it has ended."""
        if self.process is not None and self.process.poll() is not None:
            tail = self.log.read_text()[-1500:] if self.log.exists() else ""
            raise RuntimeError(f"{self.name} ended with status {self.process.returncode}: {tail}")

    def ready(self) -> bool:
        """Whether it says so itself; peers have no page for that."""
        if self.port is None:
            return True
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def send(self, number: int) -> None:
        """A signal to all of its processes."""
        os.killpg(self.pid, number)

    def stop(self) -> None:
        """End it."""
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            self.process.wait()


def ours(bootstrap: str, folder: Path, *options: str) -> Arm:
    """This app: one ``tokenfleet streams`` worker."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "tokenfleet", "streams", "--kafka", bootstrap, "--worker-id", "bench-0"),
        *("--port", str(port), "--data", str(folder / "ours"), "--no-closing"),
        # Catching up begins with a pause, which the peers' sessions of 45 s and more outlast.
        *("--session-ms", "15000", *options),
    ]
    return Arm(
        "tokenfleet", "fleet.outcomes", "fleet.instances", command, {}, our_row, folder / "ours.log", port
    )


def peers(bootstrap: str, folder: Path, python: Path, batch: bool) -> list[Arm]:
    """The three peers, run by the Python of their own environment."""
    made: list[Arm] = []
    for name, command in (
        ("bytewax", ["-m", "bytewax.run", f"{PEERS / 'bytewax_flow.py'}:flow", "-w", "1"]),
        ("quixstreams", [str(PEERS / "quix_app.py")]),
        ("faust", [str(PEERS / "faust_app.py"), "worker", "-l", "info", "--without-web"]),
    ):
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        environment: dict[str, Any] = {
            "BROKER": bootstrap,
            "SOURCE": f"bench.in.{name}",
            "SINK": f"bench.out.{name}",
            "BATCH": "1" if batch else "0",
            "FOLDER": str(own),
        }
        made.append(
            Arm(
                name,
                environment["SOURCE"],
                environment["SINK"],
                [str(python), *command],
                environment,
                peer_row,
                folder / f"{name}.log",
            )
        )
    return made
