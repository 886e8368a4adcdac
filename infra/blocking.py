"""Run a coroutine from synchronous code, whether or not an event loop runs in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `make()` in an event loop of its own thread; return its result, or raise its error."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocking-call") as pool:
        return pool.submit(lambda: asyncio.run(make())).result()
