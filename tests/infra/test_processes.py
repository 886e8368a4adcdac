"""The supervisor: readiness, restarts, reverse order, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infra.errors import StackError
from infra.ports import free_port
from infra.processes import ChildSpec, ChildState, Supervisor, describe_exit
from infra.readiness import CallReady, HttpReady, PortReady

PYTHON = sys.executable


def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def sleeper(name: str, **more: object) -> ChildSpec:
    return ChildSpec(name, [PYTHON, "-c", "import time; time.sleep(120)"], **more)  # type: ignore[arg-type]


def web_server(name: str, port: int) -> ChildSpec:
    argv = [PYTHON, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    return ChildSpec(name, argv, ready=HttpReady(f"http://127.0.0.1:{port}/"), restart=True)


def test_started_means_ready_and_a_killed_child_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with Supervisor(tmp_path) as sup:
        child = sup.start(web_server("web", port))
        assert child.state is ChildState.RUNNING
        assert PortReady(port).ready()
        first = child.pid
        assert first is not None
        child.send_signal(signal.SIGKILL)
        until(lambda: child.restarts == 1 and child.pid is not None)
        assert child.pid != first
        assert child.exit_status == -signal.SIGKILL
        until(PortReady(port).ready)
        sup.check()
        last = child.pid
    assert child.state is ChildState.STOPPED
    assert last is not None
    assert not psutil.pid_exists(last)


def test_a_death_while_starting_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    spec = ChildSpec("bad", [PYTHON, "-c", "raise SystemExit('cannot find the fleet')"], ready=PortReady(1))
    with Supervisor(tmp_path) as sup:
        with pytest.raises(StackError, match=r"bad ended while starting \(exit status 1\)") as error:
            sup.start(spec)
        assert "cannot find the fleet" in str(error.value)
        with pytest.raises(StackError, match="has: none"):
            sup.child("bad")


def test_a_child_that_never_gets_ready_is_stopped(tmp_path: Path) -> None:
    pids: list[int] = []
    ready = CallReady(lambda: False, "a blue moon", timeout_s=0.3)
    with Supervisor(tmp_path) as sup:
        watched = CallReady(
            lambda: bool(pids.append(sup.child("slow").pid or 0)), ready.what, ready.timeout_s
        )
        with pytest.raises(StackError, match=r"not ready after 0\.3 s \(waited for a blue moon\)"):
            sup.start(sleeper("slow", ready=watched))
    assert pids
    assert not psutil.pid_exists(pids[0])


def test_where_one_of_several_fails_none_of_them_is_left(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as sup:
        keep = sup.start(sleeper("keep"))
        with pytest.raises(StackError, match="bad ended"):
            sup.start_many([sleeper("good"), ChildSpec("bad", [PYTHON, "-c", "exit(1)"], ready=PortReady(1))])
        assert [child.name for child in sup.children] == ["keep"]
        assert keep.pid is not None


def test_children_are_stopped_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import signal, sys, time
        def leave(*_):
            with open("order", "a") as file:
                file.write(sys.argv[1] + "\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        print("armed", flush=True)
        time.sleep(120)
    """)

    def spec(name: str) -> ChildSpec:
        log = tmp_path / "logs" / f"{name}.log"
        armed = CallReady(lambda: "armed" in log.read_text(), "its handler")
        return ChildSpec(name, [PYTHON, "-c", program, name], cwd=tmp_path, ready=armed)

    with Supervisor(tmp_path) as sup:
        sup.start_many([spec("a"), spec("b"), spec("c")])
    assert (tmp_path / "order").read_text().split() == ["c", "b", "a"]


def test_an_unexpected_end_without_restart_is_reported_by_check(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as sup:
        child = sup.start(sleeper("once"))
        sup.check()
        child.send_signal(signal.SIGKILL)
        until(lambda: child.state is ChildState.FAILED)
        with pytest.raises(StackError, match=r"once ended unexpectedly \(killed by SIGKILL\)"):
            sup.check()
        with pytest.raises(StackError, match="once is not running"):
            child.send_signal(signal.SIGTERM)


def test_a_crash_loop_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.processes._BACKOFF_LAST_S", 0.01)
    spec = ChildSpec("loop", [PYTHON, "-S", "-c", "raise SystemExit(7)"], restart=True)
    with Supervisor(tmp_path) as sup:
        child = sup.start(spec)
        until(lambda: child.state is ChildState.FAILED)
        assert child.restarts == 6
        with pytest.raises(StackError, match="exit status 7"):
            sup.check()


def test_a_name_is_used_once_and_can_be_started_again_after_a_stop(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as sup:
        sup.start(sleeper("one"))
        with pytest.raises(StackError, match="one is already running"):
            sup.start(sleeper("one"))
        sup.stop("one")
        assert sup.child("one").pid is None
        assert sup.start(sleeper("one")).pid is not None
    with pytest.raises(StackError, match="being stopped"):
        sup.start(sleeper("two"))


def test_the_environment_is_passed_on_with_the_specs_own_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTER", "kept")
    monkeypatch.setenv("INNER", "hidden")
    program = "import os, time; print(os.environ['OUTER'], os.environ['INNER'], flush=True); time.sleep(120)"
    log = tmp_path / "logs" / "env.log"
    ready = CallReady(lambda: "kept" in log.read_text(), "its output")
    with Supervisor(tmp_path) as sup:
        sup.start(ChildSpec("env", [PYTHON, "-c", program], env={"INNER": "shown"}, ready=ready))
    assert log.read_text().split() == ["kept", "shown"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphans_when_the_owner_is_ended(tmp_path: Path, signum: int) -> None:
    owner = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from infra.processes import ChildSpec, Supervisor
        from infra.signals import exit_on_termination
        with exit_on_termination(), Supervisor(Path({str(tmp_path)!r})) as sup:
            for name in ("a", "b"):
                sleeper = [sys.executable, "-c", "import time; time.sleep(120)"]
                sup.start(ChildSpec(name, sleeper, restart=True))
            print(*(child.pid for child in sup.children), flush=True)
            time.sleep(120)
    """)
    process = subprocess.Popen(
        [PYTHON, "-c", owner], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(process.pid, signum)
    status = process.wait(30)
    process.stdout.close()
    # Python re-raises an uncaught KeyboardInterrupt as the signal itself, as shells expect.
    assert status == {signal.SIGINT: -2, signal.SIGTERM: 143, signal.SIGKILL: -9}[signal.Signals(signum)]
    until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "still running"),
        (0, "exit status 0"),
        (-9, "killed by SIGKILL"),
        (-999, "killed by signal 999"),
    ],
)
def test_an_exit_status_is_put_in_words(status: int | None, words: str) -> None:
    assert describe_exit(status) == words
