"""The event queue: virtual time, in milliseconds.

Two events at the same time run in the order in which they were put in, so a run is a pure function of its
inputs. Nothing is ever taken out: whoever changes its mind gives its events a token and ignores an old one.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Handler = Callable[[float, Any], None]
"""Called with the time of the event and the argument that came with it."""


class EventQueue:
    """Events in order of time. ``now_ms`` is the time of the event that runs, or of the last that ran."""

    __slots__ = ("_heap", "_order", "events", "now_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Handler, Any]] = []
        self._order = 0
        self.now_ms = 0.0
        self.events = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time_ms: float, handler: Handler, argument: Any = None) -> None:
        """Have ``handler(time_ms, argument)`` called at ``time_ms``.

        ValueError for a time in the past or one that is no number: time never runs backwards.
        """
        if not time_ms >= self.now_ms:
            raise ValueError(f"An event can't happen at {time_ms} ms when it is {self.now_ms} ms already.")
        self._order += 1
        heappush(self._heap, (time_ms, self._order, handler, argument))

    def run(self, until_ms: float = float("inf")) -> None:
        """Run every event up to ``until_ms`` (included), those put in meanwhile as well."""
        heap = self._heap
        done = 0
        while heap and heap[0][0] <= until_ms:
            time_ms, _, handler, argument = heappop(heap)
            self.now_ms = time_ms
            done += 1
            handler(time_ms, argument)
        self.events += done
