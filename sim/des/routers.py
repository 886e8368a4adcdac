"""Routers: what each keeps for every pool, and what it keeps once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sim.des.attempts import Attempt
from sim.des.policy import Admission, Balancer, RegionChooser
from sim.des.signals import RouterSignals
from sim.des.views import RouterLayout


class Desk:
    """One router's policies for one pool, what they see of it, and the attempts that its admission holds."""

    __slots__ = ("admission", "balancer", "held", "layout", "region", "version")

    def __init__(
        self,
        version: str,
        balancer: Balancer,
        admission: Admission,
        region: RegionChooser,
        layout: RouterLayout,
    ) -> None:
        self.version = version
        self.balancer = balancer
        self.admission = admission
        self.region = region
        self.layout = layout
        self.held: dict[int, Attempt] = {}


class Router:
    """One router: its signals, its randomness, and a desk for each pool that it was ever asked for."""

    __slots__ = ("_make", "desks", "number", "rng", "signals")

    def __init__(
        self, number: int, signals: RouterSignals, rng: Random, make: Callable[[Router, str], Desk]
    ) -> None:
        """``make(router, version)`` gives the desk of a pool when it is first asked for."""
        self.number = number
        self.signals = signals
        self.rng = rng
        self.desks: dict[str, Desk] = {}
        self._make = make

    def desk(self, version: str) -> Desk:
        """The desk of a pool."""
        desk = self.desks.get(version)
        if desk is None:
            desk = self.desks[version] = self._make(self, version)
        return desk
