"""Blocking calls that may never return, each awaited for a bounded time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Silent(Exception):  # noqa: N818 - reads as what happened
    """The call did not return in time, or the one before has not returned yet."""


class BoundedThread:
    """A thread for calls into one device. It is a daemon: a call that hangs does not hold up the exit.

    A thread can't be stopped from outside, so while a call hangs no further one is begun: one stuck thread a
    device at most.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._pending: Future[Any] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def stuck(self) -> bool:
        """Has a call not returned yet?"""
        return self._pending is not None and not self._pending.done()

    async def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """What the function returns or raises; Silent after ``timeout_s``, or at once while stuck."""
        if self.stuck:
            raise Silent
        future: Future[T] = Future()
        self._pending = future
        self._calls.put((function, future))
        answer = asyncio.wrap_future(future)
        answer.add_done_callback(_seen)  # an error that comes too late has nobody to go to
        try:
            return await asyncio.wait_for(asyncio.shield(answer), timeout_s)
        except TimeoutError:
            raise Silent from None

    def close(self) -> None:
        """Let the thread end once its call, if any, returns."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            future.set_running_or_notify_cancel()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


def _seen(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
