"""TCP ports on this machine's loopback interface."""

from __future__ import annotations

import errno
import random
import socket
from collections import deque
from contextlib import closing
from pathlib import Path

from infra.errors import StackError

LOOPBACK = "127.0.0.1"

_LOWEST_PICK = 20_000
"""Well-known servers mostly listen below."""
_picked: deque[int] = deque(maxlen=2_000)
"""What ``free_port`` returned lately."""


def free_port() -> int:
    """Return a TCP port that was free on 127.0.0.1 a moment ago.

    It lies outside the range from which the kernel takes the source ports of outgoing connections: a client
    that keeps trying to reach a dead server on a port of that range can be given the very port as its source,
    is then connected to itself, and the server cannot come back. No port is returned twice in a process: what
    was picked first may be bound last. Another process may take the port before it is used, so a caller still
    has to handle a failed bind.
    """
    first_ephemeral, last_ephemeral = _ephemeral_range()
    for _ in range(100):
        port = random.randrange(_LOWEST_PICK, 65_536)
        is_outside = not first_ephemeral <= port <= last_ephemeral
        if is_outside and port not in _picked and _bind_error(port) is None:
            break
    else:
        while (port := _ephemeral_port()) in _picked:
            pass
    _picked.append(port)
    return port


def check_port_free(port: int, what: str) -> None:
    """Raise `StackError` unless `what` could listen on 127.0.0.1:`port` right now.

    Addresses in TIME_WAIT count as free, as they do for the servers that are started here.
    """
    if not 0 < port < 65536:
        raise StackError(f"{what} was given port {port}, but a TCP port lies between 1 and 65535.")
    error = _bind_error(port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise StackError(
            f"Port {port} on {LOOPBACK}, wanted for {what}, is already in use by another process; "
            "stop that process or choose another port."
        ) from error
    raise StackError(
        f"Port {port} on {LOOPBACK}, wanted for {what}, cannot be used ({error.strerror}); "
        "choose another port."
    ) from error


def port_answers(port: int, timeout_s: float = 0.5) -> bool:
    """Say whether something accepts TCP connections on 127.0.0.1:`port`."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def _ephemeral_port() -> int:
    with closing(_reusable_socket()) as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port


def _bind_error(port: int) -> OSError | None:
    with closing(_reusable_socket()) as sock:
        try:
            sock.bind((LOOPBACK, port))
        except OSError as error:
            return error
    return None


def _ephemeral_range() -> tuple[int, int]:
    """First and last port of the kernel's range for outgoing connections; IANA's where it cannot be asked."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        return int(first), int(last)
    except (OSError, ValueError):
        return 49_152, 65_535


def _reusable_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock
