"""Children die with their parent, however it dies, and are only signalled while they are ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from infra.errors import StackError
from infra.spawn import log_tail, spawn

SLEEPER = [sys.executable, "-c", "import time; time.sleep(120)"]


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether that process ends within the time; a zombie that waits for init counts as ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_output_goes_to_the_log_and_the_exit_status_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    child = spawn("child", [sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log)
    assert child.wait(20)
    assert child.reap() == 3
    assert child.reap() == 3
    assert log_tail(log).strip() == "hello"
    assert not child.send_signal(signal.SIGTERM)


def test_a_program_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no program '/no/such/program'"):
        spawn("child", ["/no/such/program"], tmp_path / "log")


def test_stop_kills_what_ignores_the_polite_request_and_its_whole_group(tmp_path: Path) -> None:
    stubborn = textwrap.dedent("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
        print(grandchild.pid, flush=True)
        time.sleep(120)
    """)
    log = tmp_path / "log"
    child = spawn("stubborn", [sys.executable, "-c", stubborn], log)
    while not log.read_text().endswith("\n"):
        time.sleep(0.02)
    assert child.stop(grace_s=0.1) == -signal.SIGKILL
    assert gone(child.pid)
    assert gone(int(log.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
@pytest.mark.parametrize("ending", ["kill", "return", "thread"])
def test_no_child_outlives_its_parent(tmp_path: Path, ending: str) -> None:
    """`thread`: the thread that asked for the child ends first, which must not end the child."""
    parent = textwrap.dedent(f"""
        import os, signal, sys, threading, time
        from pathlib import Path
        from infra.spawn import spawn
        def begin():
            child = spawn("child", {SLEEPER!r}, Path({str(tmp_path / "log")!r}))
            print(child.pid, flush=True)
            return child
        if {ending!r} == "thread":
            children = []
            starter = threading.Thread(target=lambda: children.append(begin()))
            starter.start(); starter.join(); time.sleep(0.5)
            print("ended" if children[0].exited() else "alive", flush=True)
        else:
            begin()
        if {ending!r} != "return":
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    answer = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, timeout=60)
    pid, *rest = answer.stdout.split()
    assert rest == (["alive"] if ending == "thread" else [])
    assert gone(int(pid))


def test_a_forked_copy_of_the_parent_does_not_touch_its_children(tmp_path: Path) -> None:
    child = spawn("child", SLEEPER, tmp_path / "log")
    copy = os.fork()
    if copy == 0:
        try:
            child.kill()
        finally:
            os._exit(0)
    os.waitpid(copy, 0)
    assert not child.exited()
    assert child.kill() == -signal.SIGKILL
