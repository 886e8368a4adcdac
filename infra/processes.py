"""Named child processes of a local stack: awaited, restarted when they die, stopped in reverse order."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType

import structlog

from infra.errors import StackError
from infra.readiness import Readiness
from infra.spawn import ChildProcess, log_tail, spawn

_log = structlog.get_logger(__name__)

_WATCH_INTERVAL_S = 0.1
_PROBE_INTERVAL_S = 0.1
_BACKOFF_FIRST_S = 0.2
_BACKOFF_LAST_S = 5.0
_STABLE_AFTER_S = 10.0
"""A child that ran this long before it died is restarted as if it had never failed."""
_QUICK_DEATHS_LIMIT = 6
"""So many deaths in a row, each within `_STABLE_AFTER_S`, count as a crash loop: the child is given up."""
_LOG_KEEP_BYTES = 16 * 1024 * 1024
"""A log larger than this when its child is first started is set aside as `NAME.log.1`."""


class ChildState(StrEnum):
    """Where a supervised child is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class ChildSpec:
    """What to run, and how to look after it."""

    name: str
    """Unique within the supervisor; also names the log file."""
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables set on top of this process's own environment."""
    ready: Readiness | None = None
    """Asked until it says yes; None: ready as soon as it runs."""
    restart: bool = False
    """Start it again (with a short, growing pause) whenever it ends by itself after it was ready."""
    stop_grace_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    cwd: Path | None = None


class Child:
    """A supervised process as its supervisor sees it; the `Supervisor` alone changes it."""

    def __init__(self, spec: ChildSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.state = ChildState.STARTING
        self.restarts = 0
        self.exit_status: int | None = None
        """Of its last run: negative is minus the signal that ended it; None before any run has ended."""
        self._process: ChildProcess | None = None
        self._started_s = 0.0
        self._quick_deaths = 0
        self._restart_at_s = 0.0

    @property
    def name(self) -> str:
        """The name given in the spec."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None (between a death and the restart, too)."""
        process = self._process
        return None if process is None or process.exited() else process.pid

    def send_signal(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal (fault tests send SIGKILL); raises `StackError` when the child is not running."""
        process = self._process
        if process is None or not process.send_signal(signum):
            raise StackError(f"{self.name} is not running, so it cannot be sent signal {signum}.")


class Supervisor:
    """Starts children, watches them from a thread, and ends every one of them: on `stop_all`, at the end of a
    `with` block, at interpreter exit, and (on Linux, by the kernel) when this process is killed.

    Logs go to `data_dir/logs/NAME.log`. All methods may be called from any thread.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._lock = threading.RLock()
        self._children: dict[str, Child] = {}
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        _live_supervisors.add(self)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def children(self) -> tuple[Child, ...]:
        """All children in the order of their start."""
        with self._lock:
            return tuple(self._children.values())

    def child(self, name: str) -> Child:
        """Return the child of that name; raises `StackError` when there is none."""
        with self._lock:
            if name not in self._children:
                known = ", ".join(self._children) or "none"
                raise StackError(f"There is no child process {name!r}; the supervisor has: {known}.")
            return self._children[name]

    def start(self, spec: ChildSpec) -> Child:
        """Start one child and return when it is ready.

        Raises `StackError`, with the last lines of its log, when it dies first or is not ready in time; it is
        then stopped and forgotten.
        """
        return self.start_many([spec])[0]

    def start_many(self, specs: Iterable[ChildSpec]) -> list[Child]:
        """Start children together and return when all are ready; where one fails all of these are stopped."""
        begun: list[Child] = []
        try:
            for spec in specs:
                begun.append(self._begin(spec))
            for child in begun:
                self._await_ready(child)
        except BaseException:
            for child in reversed(begun):
                self._stop_child(child)
                with self._lock:
                    del self._children[child.name]
            raise
        return begun

    def stop(self, name: str) -> None:
        """Stop one child for good; it stays listed as stopped."""
        self._stop_child(self.child(name))

    def check(self) -> None:
        """Raise `StackError` when a child that should be running has ended and will not be restarted."""
        for child in self.children:
            if child.state is ChildState.FAILED:
                raise StackError(_obituary(child, "ended unexpectedly"))

    def stop_all(self) -> None:
        """Stop all children, the last started first. Safe to call twice. An interrupt kills them at once."""
        self._stopping.set()
        watcher = self._watcher
        try:
            if watcher is not None and watcher is not threading.current_thread():
                watcher.join()
            for child in reversed(self.children):
                self._stop_child(child)
        except BaseException:
            for child in self.children:
                if child._process is not None:
                    child._process.kill()
            raise

    def _begin(self, spec: ChildSpec) -> Child:
        log_path = self.data_dir / "logs" / f"{spec.name}.log"
        with self._lock:
            if self._stopping.is_set():
                raise StackError(f"{spec.name} cannot be started: the stack is being stopped.")
            earlier = self._children.get(spec.name)
            if earlier is not None and earlier.state is not ChildState.STOPPED:
                raise StackError(f"{spec.name} is already {earlier.state}; stop it before starting it again.")
            _set_aside_large_log(log_path)
            child = Child(spec, log_path)
            self._launch(child)
            self._children.pop(spec.name, None)  # so that the order is the order of starts
            self._children[spec.name] = child
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
                self._watcher.start()
        return child

    def _launch(self, child: Child) -> None:
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **child.spec.env}
        child._process = spawn(child.name, child.spec.argv, child.log_path, env, child.spec.cwd)
        child._started_s = time.monotonic()

    def _await_ready(self, child: Child) -> None:
        probe, process = child.spec.ready, child._process
        if process is None:
            raise StackError(f"{child.name} was stopped while it started.")
        while True:
            if process.exited():
                child.exit_status = process.reap()
                raise StackError(_obituary(child, "ended while starting"))
            # Asked after the death check: an answer on its port could come from somebody else's process.
            if probe is None or probe.ready():
                break
            if time.monotonic() - child._started_s > probe.timeout_s:
                raise StackError(
                    f"{child.name} was not ready after {probe.timeout_s:g} s "
                    f"(waited for {probe.describe()}); {_last_words(child)}"
                )
            time.sleep(_PROBE_INTERVAL_S)
        with self._lock:
            if child.state is ChildState.STARTING:
                child.state = ChildState.RUNNING

    def _stop_child(self, child: Child) -> None:
        with self._lock:  # the state first: the watcher leaves a stopped child alone
            process, child._process = child._process, None
            if child.state is not ChildState.FAILED or process is not None:
                child.state = ChildState.STOPPED
        if process is not None:
            child.exit_status = process.stop(child.spec.stop_grace_s)

    def _watch(self) -> None:
        while not self._stopping.wait(_WATCH_INTERVAL_S):
            for child in self.children:
                with self._lock:
                    try:
                        self._look_after(child, time.monotonic())
                    except StackError as error:
                        child.state = ChildState.FAILED
                        _log.error("child cannot be restarted", child=child.name, error=str(error))
                    except Exception:  # whatever it is (a closed log, say), the others must be looked after
                        with contextlib.suppress(Exception):
                            _log.exception("watching failed", child=child.name)

    def _look_after(self, child: Child, now_s: float) -> None:
        """Notice a death, and restart when it is time. Called with the lock held."""
        process = child._process
        if child.state is ChildState.RUNNING and process is not None and process.exited():
            child._process = None
            child.exit_status = process.reap()
            quick = now_s - child._started_s < _STABLE_AFTER_S
            child._quick_deaths = child._quick_deaths + 1 if quick else 1
            if not child.spec.restart or child._quick_deaths > _QUICK_DEATHS_LIMIT:
                child.state = ChildState.FAILED
                _log.error("child ended", child=child.name, exit_status=child.exit_status)
                return
            child.state = ChildState.RESTARTING
            pause_s = min(_BACKOFF_LAST_S, _BACKOFF_FIRST_S * 2 ** (child._quick_deaths - 1))
            child._restart_at_s = now_s + pause_s
            _log.warning("child restarts", child=child.name, exit_status=child.exit_status, pause_s=pause_s)
        elif child.state is ChildState.RESTARTING and now_s >= child._restart_at_s:
            self._launch(child)
            child.restarts += 1
            child.state = ChildState.RUNNING


def describe_exit(status: int | None) -> str:
    """Say in words how a process ended, from its exit status (negative: minus the signal's number)."""
    if status is None:
        return "still running"
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


def _obituary(child: Child, what: str) -> str:
    return f"{child.name} {what} ({describe_exit(child.exit_status)}); {_last_words(child)}"


def _last_words(child: Child) -> str:
    return f"the end of its log {child.log_path}:\n{log_tail(child.log_path)}"


def _set_aside_large_log(log_path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log_path.stat().st_size > _LOG_KEEP_BYTES:
            log_path.replace(log_path.with_name(log_path.name + ".1"))


_live_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


@atexit.register
def _stop_all_supervisors() -> None:
    for supervisor in list(_live_supervisors):
        supervisor.stop_all()
