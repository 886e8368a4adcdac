"""Turn a request to end this process into an ordinary exception, so that `with` blocks clean up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise `SystemExit(128 + signal)`, as Ctrl-C raises an exception.

    Only for the main thread (Python's rule for handlers); the earlier handlers are put back afterwards.
    """

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    earlier = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
