"""Boots: which life of an engine's process a scrape belongs to. Pure: ``now_ms`` is an argument.

Where the engine tells its process start, or a token in the response headers that is constant in a life, the
boot's name derives from it, so that an agent that restarts names the same life the same. Where it tells
neither, the agent mints a name when it first sees the engine, and again when counters have fallen; an agent
that restarts goes on with the boot of its own last row where that is so recent that the engine can't have
been loaded anew since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.base import EARLIEST_MS


@dataclass(frozen=True, slots=True)
class Boot:
    """A life of an engine's process. ``started_at_ms`` orders an instance's boots."""

    name: str
    started_at_ms: int


UNSEEN = Boot("unseen", EARLIEST_MS)
"""Before an agent's first answer from an engine: older than any real boot, so it never displaces one."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one scrape tells of the process.

    ``start_source`` is the metric that the start came from: starts of different metrics are not compared.
    ``counters`` are keyed by anything stable (rank, model and name); only those in both scrapes are compared.
    """

    started_at_ms: int | None = None
    start_source: str | None = None
    token: str | None = None
    counters: Mapping[object, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The boot of a scrape; ``fell`` are counters that fell though the process is known to be the same."""

    boot: Boot
    new: bool
    fell: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Previous:
    """The boot that an agent last wrote of an instance, in an earlier life of its own.

    ``recent``: the engine answered so short a time ago that it can't have restarted and loaded its model.
    """

    boot: Boot
    recent: bool


class BootTracker:
    """Follows one instance's boots, one scrape after the other."""

    def __init__(self, previous: Previous | None = None) -> None:
        self.boot = UNSEEN
        self._previous = previous
        self._start: tuple[str | None, int] | None = None
        self._token: str | None = None
        self._counters: dict[object, float] = {}

    def observe(self, evidence: Evidence, now_ms: int) -> Verdict:
        """The boot that this scrape belongs to."""
        fell = tuple(
            name
            for name, value in evidence.counters.items()
            if name in self._counters and value < self._counters[name]
        )
        start = None
        if evidence.started_at_ms is not None:
            start = (evidence.start_source, evidence.started_at_ms)
        boot = self._next(start, evidence.token, bool(fell), now_ms)
        new = boot != self.boot
        if new:
            self.boot = boot
            self._start, self._token, self._counters = start, evidence.token, {}
        self._start = self._start or start
        self._token = self._token or evidence.token
        self._counters.update(evidence.counters)
        return Verdict(self.boot, new, () if new else fell)

    def _next(self, start: tuple[str | None, int] | None, token: str | None, fell: bool, now_ms: int) -> Boot:
        named = None if start is None else Boot(f"b{start[1]:x}", start[1])
        if self.boot is UNSEEN:
            return named or self._resumed(token) or self._minted(token, now_ms)
        if start is not None and self._start is not None and start[0] == self._start[0]:
            # The same metric told a start before: it alone decides, a fall is then a reset within the boot.
            return self.boot if start == self._start else named or self.boot
        changed = token is not None and self._token is not None and token != self._token
        if changed or fell:
            return named or self._minted(token if changed else None, now_ms)
        return self.boot

    def _resumed(self, token: str | None) -> Boot | None:
        """The boot of the agent's earlier life, where it is still the same life of the engine."""
        before = self._previous
        if before is None or before.boot.name == UNSEEN.name:
            return None
        if token is not None:
            return before.boot if before.boot.name == _of_token(token) else None
        return before.boot if before.recent and before.boot.name.startswith("a") else None

    def _minted(self, token: str | None, now_ms: int) -> Boot:
        last_ms = self.boot.started_at_ms
        if self._previous is not None:
            last_ms = max(last_ms, self._previous.boot.started_at_ms)
        name = f"a{now_ms:x}" if token is None else _of_token(token)
        return Boot(name, max(now_ms, last_ms + 1))


def _of_token(token: str) -> str:
    return f"t{hashlib.sha256(token.encode()).hexdigest()[:16]}"
