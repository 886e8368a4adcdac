"""Which region: the cross-region rules of GORGO, SkyWalker, GCLB, Envoy and SageServe, and two plain ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import numpy as np

from minds.fleetmind.regions import order_regions
from minds.tokenpilot.predicted_ttft import Prospect, StepRates, predicted_ttft_ms
from sim.des.policy import NearestRegion, Refusal, RegionChooser, RequestView
from sim.des.views import CandidatesView, FleetView
from sim.engine.step_model import params_named
from sim.policies.knobs import Entry, Knob, table
from sim.policies.scored import known


def utilisation(candidates: CandidatesView, slots: float) -> float:
    """Outstanding requests for each slot of the region, so many slots an instance."""
    return float(candidates.outstanding.sum()) / (slots * max(1, len(candidates)))


class Gorgo:
    """GORGO: the region of the least ``RTT + t_p*uncached + q*t_p*running_prefill`` over all instances."""

    def __init__(self, prefill_ms: float = 0.094, queue_weight: float = 0.5) -> None:
        self._prefill_ms, self._queue = prefill_ms, queue_weight

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """The one with the best instance."""
        costs = []
        for region in allowed:
            view = fleet.candidates(region)
            uncached = np.maximum(1.0, request.prompt_tokens - view.matched_tokens(request.blocks))
            cost = self._prefill_ms * (uncached + self._queue * view.pending_prefill_tokens)
            costs.append(fleet.region(region).rtt_ms + float(cost.min()))
        return allowed[costs.index(min(costs))]


class SkyWalker:
    """SkyWalker: the nearest region with a replica that has nothing pending, best prefix first among equals
    in reach; where none has, the one with the least pending for each instance."""

    def __init__(self, pending: float = 0.0, prefix_share: float = 0.5) -> None:
        """A replica is free with at most ``pending`` requests in its queue; a region with a prefix match of
        ``prefix_share`` of the prompt on a free replica comes first."""
        self._pending, self._share = pending, prefix_share

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """By the rule above."""
        first: int | None = None
        best, best_matched = None, self._share * request.prompt_tokens
        queues = []
        for region in allowed:
            view = fleet.candidates(region)
            queue = known(view.waiting) + (view.own_sent + view.logged_sent)
            free = queue <= self._pending
            queues.append(float(queue.mean()))
            if not free.any():
                continue
            first = region if first is None else first
            matched = float(view.matched_tokens(request.blocks)[free].max())
            if matched > best_matched:
                best, best_matched = region, matched
        if best is not None:
            return best
        return first if first is not None else allowed[queues.index(min(queues))]


class Waterfall:
    """GCLB waterfall: fill the nearest region to its target, overflow by distance; a region that has lost
    more than 30% of its instances is left in proportion."""

    def __init__(self, slots: float = 32.0, target: float = 0.8) -> None:
        self._slots, self._target = slots, target
        self._most: dict[int, int] = {}

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """The nearest below its target, else the least used."""
        used = []
        for region in allowed:
            view = fleet.candidates(region)
            most = self._most[region] = max(self._most.get(region, 0), len(view))
            value = utilisation(view, self._slots)
            used.append(value)
            healthy = len(view) / most
            if value < self._target and (healthy >= 0.7 or rng.random() < healthy / 0.7):
                return region
        return allowed[used.index(min(used))]


class EnvoyLocality:
    """Envoy's locality load: the nearest gets ``min(100, 140*healthy/total)`` percent, the rest spills on."""

    def __init__(self, overprovisioning: float = 1.4) -> None:
        self._factor = overprovisioning
        self._most: dict[int, int] = {}

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """By chance, in order of distance."""
        for region in allowed:
            healthy = len(fleet.candidates(region))
            most = self._most[region] = max(self._most.get(region, 0), healthy)
            if rng.random() < min(1.0, self._factor * healthy / most):
                return region
        return allowed[0]


class SageServe:
    """SageServe: the first preferred region with a utilisation under the bound, else the least used."""

    def __init__(self, slots: float = 32.0, bound: float = 0.7) -> None:
        self._slots, self._bound = slots, bound

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """By the rule above."""
        used = [utilisation(fleet.candidates(region), self._slots) for region in allowed]
        for region, value in zip(allowed, used, strict=True):
            if value < self._bound:
                return region
        return allowed[used.index(min(used))]


class LeastLoadedRegion:
    """Our router's first rule (:mod:`minds.fleetmind.regions`): least outstanding for each endpoint."""

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """The mind's first region; the entry wins near-ties where it serves itself."""
        loads = {
            str(region): float(fleet.candidates(region).outstanding.mean()) for region in sorted(allowed)
        }
        return int(order_regions(loads, str(request.entry_region), rng.getrandbits(63))[0])


class PredictedRegion:
    """RTT plus the least predicted time to first token in the region, by our instance mind."""

    def __init__(self, rtt_weight: float = 1.0, price_weight: float = 0.0) -> None:
        """``price_weight``: ms that a unit of money for each GB of egress is worth."""
        self._rtt, self._price = rtt_weight, price_weight

    def choose_region(
        self, now_ms: float, request: RequestView, fleet: FleetView, allowed: Sequence[int], rng: Random
    ) -> int | Refusal:
        """The least sum."""
        costs = []
        for region in allowed:
            view, link = fleet.candidates(region), fleet.region(region)
            least_ms = min(predicted_ttft_ms(p, request.prompt_tokens) for p in _prospects(view, request))
            costs.append(self._rtt * link.rtt_ms + self._price * link.egress_price_per_gb + least_ms)
        return allowed[costs.index(min(costs))]


def _prospects(view: CandidatesView, request: RequestView) -> list[Prospect]:
    rates = []
    for engine in view.engines:
        params = params_named(engine)
        rates.append(
            StepRates(
                params.base_ms,
                params.decode_ms,
                params.resident_ms,
                params.prefill_ms,
                params.attention_ms,
            )
        )
    columns = (
        view.pending_prefill_tokens,
        view.pending_attention_ktok2,
        view.matched_tokens(request.blocks),
        known(view.running),
        known(view.kv_usage) * view.kv_tokens,
        view.kv_tokens,
    )
    return [
        Prospect(rate, *(float(value) for value in row))
        for rate, row in zip(rates, np.stack(columns, axis=1), strict=True)
    ]


REGIONS: Final[Mapping[str, Entry[RegionChooser]]] = table(
    Entry[RegionChooser]("nearest", "nearest", "classic", NearestRegion),
    Entry[RegionChooser](
        "gorgo",
        "GORGO",
        "GORGO",
        Gorgo,
        (Knob("prefill_ms", 0.094, 0.01, 0.5, log_scale=True), Knob("queue_weight", 0.5, 0.1, 2)),
        needs_prefix=True,
    ),
    Entry[RegionChooser](
        "skywalker",
        "SkyWalker",
        "SkyWalker",
        SkyWalker,
        (Knob("pending", 0, 0, 8, whole=True), Knob("prefix_share", 0.5, 0.05, 1)),
        needs_prefix=True,
    ),
    Entry[RegionChooser](
        "waterfall",
        "GCLB waterfall",
        "Google Cloud load balancing",
        Waterfall,
        (Knob("slots", 32, 4, 256, log_scale=True), Knob("target", 0.8, 0.3, 1)),
    ),
    Entry[RegionChooser](
        "envoy_locality",
        "Envoy locality",
        "Envoy",
        EnvoyLocality,
        (Knob("overprovisioning", 1.4, 1, 2),),
    ),
    Entry[RegionChooser](
        "sageserve",
        "SageServe",
        "SageServe",
        SageServe,
        (Knob("slots", 32, 4, 256, log_scale=True), Knob("bound", 0.7, 0.3, 1)),
    ),
    Entry[RegionChooser](
        "least_loaded_mind", "ours: least loaded region", "minds.fleetmind", LeastLoadedRegion
    ),
    Entry[RegionChooser](
        "predicted",
        "ours: RTT + predicted TTFT",
        "minds.tokenpilot",
        PredictedRegion,
        (Knob("rtt_weight", 1, 0.5, 3), Knob("price_weight", 0, 0, 1_000)),
        needs_prefix=True,
    ),
)
"""Every region policy."""
