"""An intent and its attempts while they are under way: the simulation's own books, hidden from policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.des.policy import RequestView
from sim.des.sequence import Sequence
from sim.des.signals import Dispatch
from sim.workloads.plan import IntentSpec

if TYPE_CHECKING:
    from sim.des.routers import Desk


class Intent:
    """A user's request from its first attempt to its end. Times in ms."""

    __slots__ = ("attempts", "closed", "deadline_ms", "entry", "live", "row", "spec", "start_ms")

    def __init__(self, spec: IntentSpec, row: int, entry: int, start_ms: float) -> None:
        self.spec = spec
        self.row = row
        self.entry = entry
        self.start_ms = start_ms
        self.deadline_ms = start_ms + spec.deadline_ms
        self.attempts = 0
        self.closed = False
        self.live: Attempt | None = None


class Attempt:
    """One try of an intent. ``live`` until its client has an end of it; the engine may find out later."""

    __slots__ = (
        "admitted",
        "boot",
        "desk",
        "dispatch",
        "first_ms",
        "held",
        "intent",
        "live",
        "patience_ms",
        "prefilled",
        "replica",
        "router",
        "sequence",
        "start_ms",
        "view",
    )

    def __init__(
        self, intent: Intent, view: RequestView, router: int, desk: Desk, start_ms: float, patience_ms: float
    ) -> None:
        self.intent = intent
        self.view = view
        self.router = router
        self.desk = desk  # of its pool, at its router
        self.start_ms = start_ms
        self.patience_ms = patience_ms
        self.live = True
        self.admitted = False
        self.held = False  # waits in the admission's queue
        self.first_ms: float | None = None  # when the client sees the first token
        self.replica = -1
        self.boot = -1
        self.dispatch: Dispatch | None = None
        self.prefilled = False  # the router has seen the first token, or the end
        self.sequence: Sequence | None = None
