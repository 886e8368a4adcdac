"""Replicas: the life of an engine process in its place, and the roll-out of a new version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from sim.des.events import EventQueue
from sim.des.instance import Instance
from sim.des.sequence import Sequence as Attempt

LOOK_AGAIN_MS = 1_000.0
"""How long a roll-out waits for a replica that is neither up nor down."""


class ReplicaState(StrEnum):
    """What the process in this place is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # takes nothing new
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Where it is and which engine runs there (a parameter set's name). ``version`` is the model's."""

    region: str
    engine: str = "S2"
    version: str = "1"
    ready: bool = True
    kv_tokens: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


class Replica:
    """A place for one engine. ``changed`` is called whenever it comes to be routable or ceases to."""

    __slots__ = (
        "_changed",
        "_events",
        "_on_drained",
        "boot",
        "instance",
        "number",
        "region",
        "state",
        "version",
    )

    def __init__(
        self,
        number: int,
        region: int,
        version: str,
        instance: Instance,
        events: EventQueue,
        changed: Callable[[Replica], None],
        *,
        ready: bool,
    ) -> None:
        self.number = number
        self.region = region
        self.version = version
        self.instance = instance
        self.state = ReplicaState.READY if ready else ReplicaState.DOWN
        self.boot = 0
        self._events = events
        self._changed = changed
        self._on_drained: Callable[[Replica], None] | None = None

    @property
    def serving(self) -> bool:
        """Whether the process can be reached: what is on the way to a draining one still gets in."""
        return self.state in (ReplicaState.READY, ReplicaState.DRAINING)

    def start(self, now_ms: float, load_ms: float, version: str | None = None) -> None:
        """A new process begins to load the model, with an empty cache. ValueError unless it is down."""
        if self.state is not ReplicaState.DOWN:
            raise ValueError(f"Replica {self.number} can't start: it is {self.state}, not down.")
        self.state = ReplicaState.LOADING
        self.boot += 1
        if version is not None:
            self.version = version
        self._events.at(now_ms + load_ms, self._loaded, self.boot)

    def _loaded(self, now_ms: float, boot: int) -> None:
        if boot == self.boot and self.state is ReplicaState.LOADING:
            self.state = ReplicaState.READY
            self._changed(self)

    def drain(self, now_ms: float, then: Callable[[Replica], None] | None = None) -> None:
        """Take nothing new; go down when the last request has ended, then call ``then``."""
        if self.state is not ReplicaState.READY:
            raise ValueError(f"Replica {self.number} can't be drained: it is {self.state}, not ready.")
        self.state = ReplicaState.DRAINING
        self._on_drained = then
        self._changed(self)

    def empty(self, now_ms: float) -> None:
        """Nothing is in it and nothing on its way; only a draining one goes down for that."""
        if self.state is ReplicaState.DRAINING:
            self._down(now_ms)
            self._settle()

    def fail(self, now_ms: float) -> list[Attempt]:
        """The process dies with all that is in it; returns what is lost. Nothing happens where it is down."""
        if self.state is ReplicaState.DOWN:
            return []
        lost = self._down(now_ms)
        self._settle()
        return lost

    def _settle(self) -> None:
        """Whoever had it drained goes on, also where it failed before it was empty."""
        then, self._on_drained = self._on_drained, None
        if then is not None:
            then(self)

    def _down(self, now_ms: float) -> list[Attempt]:
        self.state = ReplicaState.DOWN
        lost = self.instance.fail(now_ms)
        self._changed(self)
        return lost


class RollOut:
    """Replaces version after version in place: drain, load, next; at most ``parallel`` are out at a time."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        drain: Callable[[Replica, Callable[[Replica], None]], None],
        *,
        version: str,
        load_ms: float,
        parallel: int,
        events: EventQueue,
    ) -> None:
        """``drain(replica, then)`` takes one out of service. ValueError for impossible figures."""
        if parallel < 1 or not 0 <= load_ms < inf:
            raise ValueError(
                f"A roll-out needs one or more at a time and a load time >= 0 ms, not {parallel}."
            )
        self._left = list(reversed(replicas))
        self._drain = drain
        self._version = version
        self._load_ms = load_ms
        self._parallel = parallel
        self._events = events

    def begin(self, now_ms: float) -> None:
        """Take the first ones out."""
        for _ in range(self._parallel):
            self._next(now_ms)

    def _next(self, now_ms: float, _argument: None = None) -> None:
        while self._left:
            replica = self._left.pop()
            if replica.state is ReplicaState.READY:
                self._drain(replica, self._drained)
                return
            if replica.state is ReplicaState.DOWN:
                self._drained(replica)
                return
            self._left.insert(0, replica)  # loading, or drained by someone else: look again
            self._events.at(now_ms + LOOK_AGAIN_MS, self._next)
            return

    def _drained(self, replica: Replica) -> None:
        now_ms = self._events.now_ms
        replica.start(now_ms, self._load_ms, self._version)
        self._events.at(now_ms + self._load_ms, self._next)
