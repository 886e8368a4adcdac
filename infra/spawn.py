"""Child processes that cannot outlive this one, and that are only ever signalled while they are ours.

Two facts of Unix shape this module:

- Linux sends the parent-death signal when the *thread* that forked ends, not the process (prctl(2)). All
  children are therefore forked by one thread that lives as long as the process.
- A process id is free for reuse once it has been reaped, so a late signal could hit a stranger. Children are
  observed without reaping (`waitid` with WNOWAIT), their group is killed, and only then are they reaped.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from infra.errors import StackError

_SHIM = Path(__file__).with_name("die_with_parent.py")
_POLL_S = 0.02

_unreaped: set[ChildProcess] = set()


class ChildProcess:
    """One started program in a session (and process group) of its own. Thread-safe."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.pid: int = popen.pid
        self._popen = popen
        self._lock = threading.RLock()
        self._lost = False
        _unreaped.add(self)

    def exited(self) -> bool:
        """Say whether the program has ended; its process id stays reserved until `reap`."""
        with self._lock:
            if self._popen.returncode is not None or self._lost:
                return True
            if not hasattr(os, "waitid"):  # macOS before Python 3.13
                return self._popen.poll() is not None
            try:
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ChildProcessError:  # reaped by somebody else, or we are a forked copy of its parent
                self._lost = True
                return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the program has ended, for `timeout_s` seconds at most; say whether it has."""
        deadline = time.monotonic() + timeout_s
        while not self.exited():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def send_signal(self, signum: int) -> bool:
        """Send a signal to the program alone; say whether it was still there to receive it."""
        with self._lock:
            if self.exited():
                return False
            os.kill(self.pid, signum)
            return True

    def kill(self) -> int:
        """SIGKILL the program and everything left in its group, reap it, and return its exit status."""
        with self._lock:
            self.exited()  # finds out whether the child is still ours
            if self._popen.returncode is None and not self._lost:
                # Not reaped yet, so neither the id nor the group can belong to anybody else.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            status = self._popen.wait()
        _unreaped.discard(self)
        return status

    def reap(self) -> int:
        """Collect a program that has ended, and end what is left in its group; return its exit status."""
        return self.kill()

    def stop(self, grace_s: float) -> int:
        """SIGTERM, wait `grace_s` seconds, then SIGKILL what is left of the group; return the exit status."""
        try:
            if self.send_signal(signal.SIGTERM):
                self.wait(grace_s)
        finally:  # an impatient second Ctrl-C must not leave the program behind
            status = self.kill()
        return status


def spawn(
    name: str,
    argv: Sequence[str],
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> ChildProcess:
    """Start `argv` with its output appended to `log_path`.

    `env` is the whole environment (this process's own when None). Raises `StackError` when the program does
    not exist or cannot be started.
    """
    if not argv or shutil.which(argv[0]) is None:
        raise StackError(f"{name} cannot be started: there is no program {argv[0] if argv else ''!r} here.")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *argv]
    try:
        with log_path.open("ab") as log:
            popen = _forker.call(command, log.fileno(), None if env is None else dict(env), cwd)
    except OSError as error:
        raise StackError(f"{name} cannot be started: {error}.") from error
    return ChildProcess(name, popen)


def log_tail(log_path: Path, lines: int = 15) -> str:
    """Return the last lines of a log file, indented for a message; says so when there are none."""
    try:
        with log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 16_384))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        text = ""
    last = [line for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(f"    {line}" for line in last) or "    (it logged nothing)"


class _Forker:
    """The long-lived thread that forks every child (see the module's docstring)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[
            tuple[list[str], int, dict[str, str] | None, Path | None, Future[subprocess.Popen[bytes]]]
        ] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(
        self, command: list[str], log_fd: int, env: dict[str, str] | None, cwd: Path | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None:
                # A daemon, so that it is still alive while `atexit` handlers stop the children in good order.
                self._thread = threading.Thread(target=self._serve, name="child-forker", daemon=True)
                self._thread.start()
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((command, log_fd, env, cwd, answer))
        return answer.result()

    def _serve(self) -> None:
        while True:
            command, log_fd, env, cwd, answer = self._requests.get()
            try:
                popen = subprocess.Popen(  # noqa: S603 - argument list, no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log_fd,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                )
            except BaseException as error:  # the caller gets it, the thread goes on
                answer.set_exception(error)
            else:
                answer.set_result(popen)


_forker = _Forker()


def _forget_forker() -> None:
    """A forked copy of this process has no threads but its own, so it needs a forker of its own."""
    global _forker
    _forker = _Forker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_forker)


@atexit.register
def _kill_unreaped() -> None:
    """Nothing that was started here survives an ordinary end of this process, on any system."""
    for child in list(_unreaped):
        child.kill()
