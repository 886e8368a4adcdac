"""A whole run: clients, routers, links and instances in one event queue.

The run is a pure function of its arguments: the same seed gives the same bytes. What happens to a request:
offered, admitted (or held, or refused) at a router of its entry region, sent to a region and an instance,
over the link and through the engine's front end into its queue, and back token by token. Its client may lose
patience, leave or come again at any moment of that.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from sim.des.clients import Arrival, Arrivals, ClientOptions
from sim.des.events import EventQueue, Handler
from sim.des.flow import RequestFlow
from sim.des.instance import Instance
from sim.des.metrics import Recorder, Results, Totals, results_of
from sim.des.network import Network
from sim.des.policy import Admission, AdmitAll, Balancer, NearestRegion, RegionChooser
from sim.des.pools import ReadyPools
from sim.des.prefix_index import PlacementLog
from sim.des.replicas import Replica, ReplicaSpec, ReplicaState, RollOut
from sim.des.routers import Desk, Router
from sim.des.signals import RouterSignals, SignalBoard, SignalOptions
from sim.des.views import RouterLayout
from sim.engine.step_model import params_named
from sim.workloads.plan import IntentSpec

Links = list[tuple[str, float, float]]
"""For each region its name, RTT in ms and egress price per GB, from one of them."""


@dataclass(frozen=True)
class FleetSpec:
    """What there is: regions and links, engines, routers in every region, and how signals travel.

    ``frontend``: count the engines' front end (:func:`sim.engine.step_model.frontend_ms`) into every TTFT.
    """

    network: Network
    replicas: Sequence[ReplicaSpec]
    routers_per_region: int = 1
    signals: SignalOptions = field(default_factory=SignalOptions)
    frontend: bool = True

    def __post_init__(self) -> None:
        if not self.replicas or self.routers_per_region < 1:
            raise ValueError("A fleet needs at least one replica, and at least one router in every region.")
        for replica in self.replicas:
            self.network.index(replica.region)
            params_named(replica.engine)


@dataclass(frozen=True)
class PolicySet:
    """The policies of one arm: each factory is called for every router and pool, with the router's number.

    ``needs_prefix``: keep a log of placements, from which prefix matches are guessed.
    """

    name: str
    balancer: Callable[[int], Balancer]
    admission: Callable[[int], Admission] = field(default=lambda router: AdmitAll())
    region: Callable[[int], RegionChooser] = field(default=lambda router: NearestRegion())
    needs_prefix: bool = False


class Simulation:
    """One run. Operations (``fail``, ``drain``, ``start``, ``roll_out``) are put in with ``at`` before it."""

    def __init__(
        self,
        fleet: FleetSpec,
        policies: PolicySet,
        arrivals: Arrivals,
        *,
        until_ms: float,
        warmup_ms: float = 0.0,
        clients: ClientOptions | None = None,
        seed: int = 0,
        max_run_steps: int | None = None,
    ) -> None:
        """Intents are offered until ``until_ms``; all are then played to their end. ValueError for an
        impossible window. ``max_run_steps=1`` steps plainly, for tests."""
        if not 0 <= warmup_ms < until_ms < float("inf"):
            raise ValueError(f"The warm-up ({warmup_ms} ms) must be shorter than the run ({until_ms} ms).")
        self.events = EventQueue()
        self.fleet = fleet
        self._arrivals = arrivals
        self._stream: Iterator[Arrival] = iter(())
        self._warmup_ms, self._until_ms = warmup_ms, until_ms
        self._recorder = Recorder()
        self._open = 0  # intents that have not ended, and arrivals that are certain to come
        network = fleet.network
        self.flow = RequestFlow(self.events, network, self._recorder, clients or ClientOptions(), seed)
        self.flow.on_closed = self._closed
        self.replicas = [self._replica(i, spec, max_run_steps) for i, spec in enumerate(fleet.replicas)]
        self.board = SignalBoard(len(self.replicas), fleet.signals, seed)
        self._log: PlacementLog | None = None
        if policies.needs_prefix:
            pools = [replica.instance.pool for replica in self.replicas]
            self._log = PlacementLog([pool.total_units // pool.block_units for pool in pools])
        self._pools = ReadyPools(len(network.regions), [replica.version for replica in self.replicas])
        for replica in self.replicas:
            if replica.state is ReplicaState.READY:
                self._pools.add(replica.number, replica.region, replica.version)
        self._started = False
        self._routers = self._make_routers(policies, seed)
        self.flow.connect(self._routers, self.replicas, self._pools, fleet.signals.log_delay_ms)
        self.flow.frontend = fleet.frontend

    def _replica(self, number: int, spec: ReplicaSpec, max_run_steps: int | None) -> Replica:
        instance = Instance(
            params_named(spec.engine),
            self.events,
            self.flow,
            kv_tokens=spec.kv_tokens,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            max_run_steps=max_run_steps,
        )
        region = self.fleet.network.index(spec.region)
        return Replica(
            number, region, spec.version, instance, self.events, self._replica_changed, ready=spec.ready
        )

    def _make_routers(self, policies: PolicySet, seed: int) -> list[Router]:
        instances = [replica.instance for replica in self.replicas]
        kv_tokens = np.array([instance.capacity_tokens for instance in instances], dtype=float)
        engines = tuple(spec.engine for spec in self.fleet.replicas)
        routers: list[Router] = []
        names = self.fleet.network.regions
        for row in self.fleet.network.matrix():
            links: Links = [
                (name, link.rtt_ms, link.egress_price_per_gb) for name, link in zip(names, row, strict=True)
            ]

            def make(router: Router, version: str, links: Links = links) -> Desk:
                members = self._pools.of(version)
                desk = Desk(
                    version,
                    policies.balancer(router.number),
                    policies.admission(router.number),
                    policies.region(router.number),
                    RouterLayout(router.signals, members, links, kv_tokens, engines),
                )
                if self._started:
                    self._begin_ticks(router, desk)
                return desk

            for _ in range(self.fleet.routers_per_region):
                number = len(routers)
                signals = RouterSignals(self.board, self._log)
                router = Router(number, signals, Random(f"router-{seed}-{number}"), make)
                for version in self._pools.versions:
                    router.desk(version)
                routers.append(router)
        return routers

    def _begin_ticks(self, router: Router, desk: Desk) -> None:
        if desk.admission.tick_ms is not None:
            self.events.at(self.events.now_ms + desk.admission.tick_ms, self._tick, (router, desk))

    # Operations -------------------------------------------------------------------------------------------

    def at(self, time_ms: float, operation: Callable[[Simulation], None]) -> None:
        """Have an operation done at a time of the run."""
        self.events.at(time_ms, lambda now_ms, _: operation(self))

    def fail(self, replica: int) -> None:
        """The process dies; routers learn of it from the registry, or from a request that fails."""
        now_ms = self.events.now_ms
        for sequence in self.replicas[replica].fail(now_ms):
            self.flow.lost(sequence, now_ms)

    def drain(self, replica: int, then: Callable[[Replica], None] | None = None) -> None:
        """Take nothing new, go down when empty. Nothing happens where it isn't ready."""
        if self.replicas[replica].state is not ReplicaState.READY:
            return
        self.replicas[replica].drain(self.events.now_ms, then)
        self.flow.check_empty(replica, self.events.now_ms)

    def start(self, replica: int, load_ms: float) -> None:
        """A replica that is down loads for ``load_ms`` (120-200 s for a cold one) and then serves.

        Nothing happens where it is up or loading.
        """
        if self.replicas[replica].state is not ReplicaState.DOWN:
            return
        self.replicas[replica].start(self.events.now_ms, load_ms)

    def roll_out(self, replicas: Sequence[int], version: str, *, load_ms: float, parallel: int = 1) -> None:
        """Replace the version in these replicas, one after the other.

        Each leaves the old version's pool when it drains and joins the new one's when it has loaded.
        """
        RollOut(
            [self.replicas[i] for i in replicas],
            lambda replica, then: self.drain(replica.number, then),
            version=version,
            load_ms=load_ms,
            parallel=parallel,
            events=self.events,
        ).begin(self.events.now_ms)

    def _replica_changed(self, replica: Replica) -> None:
        told_ms = self.events.now_ms + self.fleet.signals.registry_delay_ms
        self.events.at(told_ms, self._registry, (replica, replica.state, replica.version))

    def _registry(self, now_ms: float, change: tuple[Replica, ReplicaState, str]) -> None:
        replica, state, version = change
        if state is ReplicaState.READY:
            self._pools.add(replica.number, replica.region, version)
            self.board.forget(replica.number)
            if self._log is not None:
                self._log.forget(replica.number)
            for router in self._routers:
                router.signals.forget(replica.number)
        else:
            self._pools.remove(replica.number)

    # The run ----------------------------------------------------------------------------------------------

    def run(self) -> Results:
        """Play it to the end. A simulation runs once."""
        marks: list[Totals] = []
        self.events.at(self._warmup_ms, lambda now_ms, _: marks.append(self.totals(now_ms)))
        self.events.at(self._until_ms, lambda now_ms, _: marks.append(self.totals(now_ms)))
        self._stream = self._arrivals.start()
        self._next_arrival()
        self.events.at(0.0, self._sample)
        self._started = True
        for router in self._routers:
            for desk in router.desks.values():
                self._begin_ticks(router, desk)
        threshold = gc.get_threshold()
        gc.set_threshold(200_000, 50, 100)  # hardly any cycles are made here, and the heap is large
        try:
            self.events.run()
        finally:
            gc.set_threshold(*threshold)
        final = self.totals(self.events.now_ms)
        return results_of(
            self._recorder,
            tuple(self.fleet.network.regions),
            marks[0],
            marks[1],
            final,
            self.events.events,
            dict(self.flow.refusals),
        )

    def totals(self, now_ms: float) -> Totals:
        """Sums over all instances, as far as they have accounted for their steps."""
        instances = [replica.instance for replica in self.replicas]
        return Totals(
            now_ms,
            sum(i.steps for i in instances),
            sum(i.generation_tokens for i in instances),
            sum(i.prefill_tokens for i in instances),
            sum(i.prefix_query_tokens for i in instances),
            sum(i.prefix_hit_tokens for i in instances),
            sum(i.preemptions for i in instances),
            sum(i.busy_ms for i in instances),
        )

    def _next_arrival(self) -> None:
        arrival = next(self._stream, None)
        if arrival is not None:
            self._expect(arrival, self._arrive)

    def _expect(self, arrival: Arrival, handler: Handler) -> None:
        at_ms, spec = arrival
        if at_ms < self._until_ms:
            self._open += 1
            self.events.at(at_ms, handler, spec)

    def _arrive(self, now_ms: float, spec: IntentSpec) -> None:
        self._next_arrival()
        self.flow.offer(now_ms, spec)

    def _closed(self, spec: IntentSpec, ended_ms: float) -> None:
        self._open -= 1
        following = self._arrivals.after(spec, ended_ms)
        if following is not None:
            self._expect(following, self.flow.offer)

    def _sample(self, now_ms: float, _: object) -> None:
        self.board.take(now_ms, [r.instance.reading(now_ms) if r.serving else None for r in self.replicas])
        if self._open:
            self.events.at(now_ms + self.fleet.signals.sample_every_ms, self._sample)

    def _tick(self, now_ms: float, pair: tuple[Router, Desk]) -> None:
        self.flow.pump(now_ms, *pair)
        if self._open:
            self._begin_ticks(*pair)
