"""What policies see of instances, regions and the fleet: figures only, and never the true state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.des.signals import UNKNOWN_AFTER_MS, Floats, Ints, RouterSignals


class CandidatesView:
    """The instances that a policy may choose from; every column has one entry for each, in the same order.

    Readings that never came (or are older than a minute) are NaN: *unknown*, not idle.
    """

    def __init__(
        self,
        now_ms: float,
        instances: Ints,
        signals: RouterSignals,
        kv_tokens: Floats,
        engines: tuple[str, ...],
    ) -> None:
        self._now_ms = now_ms
        self._signals = signals
        self.instances = instances
        self._kv_tokens = kv_tokens
        self._engines = engines

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def age_ms(self) -> Floats:
        """Age of each sample; inf where there is none."""
        age_ms: Floats = self._now_ms - self._signals.board.sampled_ms[self.instances]
        return age_ms

    @property
    def _readings(self) -> Floats:
        readings = self._signals.board.columns[:, self.instances]
        old = self.age_ms > UNKNOWN_AFTER_MS
        if old.any():
            readings[:, old] = np.nan
        return readings

    @property
    def waiting(self) -> Floats:
        """Requests in the engine's queue at the sample."""
        column: Floats = self._readings[0]
        return column

    @property
    def running(self) -> Floats:
        """Requests in the batch at the sample."""
        column: Floats = self._readings[1]
        return column

    @property
    def kv_usage(self) -> Floats:
        """Share of KV memory in use at the sample, 0 to 1."""
        column: Floats = self._readings[2]
        return column

    @property
    def generation_tokens(self) -> Floats:
        """Tokens generated since the process started, at the sample."""
        column: Floats = self._readings[3]
        return column

    @property
    def own_in_flight(self) -> Floats:
        """This router's requests that have not ended."""
        column: Floats = self._signals.own_in_flight[self.instances]
        return column

    @property
    def own_sent(self) -> Floats:
        """Own requests in flight that were sent after the sample."""
        column: Floats = self._signals.own_sent[self.instances]
        return column

    @property
    def own_sent_tokens(self) -> Floats:
        """Prompt tokens of ``own_sent``."""
        column: Floats = self._signals.own_sent_tokens[self.instances]
        return column

    @property
    def own_ended(self) -> Floats:
        """Own requests that the sample saw and that have ended since."""
        column: Floats = self._signals.own_ended[self.instances]
        return column

    @property
    def logged_sent(self) -> Floats:
        """Dispatches of other routers after the sample, as far as the log has told."""
        column: Floats = self._signals.logged_sent[self.instances]
        return column

    @property
    def logged_sent_tokens(self) -> Floats:
        """Prompt tokens of ``logged_sent``."""
        column: Floats = self._signals.logged_sent_tokens[self.instances]
        return column

    @property
    def kv_tokens(self) -> Floats:
        """Tokens that each KV memory holds (configuration, not state)."""
        column: Floats = self._kv_tokens[self.instances]
        return column

    @property
    def engines(self) -> list[str]:
        """Names of the engines' parameter sets (configuration, not state)."""
        return [self._engines[i] for i in self.instances]

    @property
    def outstanding(self) -> Floats:
        """Running plus waiting, corrected by all that is known since; at least the own ones.

        Where nothing was read: the mean of the others, or the own count where there are none.
        """
        signals = self._signals
        at = self.instances
        estimate: Floats = signals.board.outstanding[at]
        estimate += signals.correction[at]
        missing = np.isnan(estimate)
        if self._now_ms - signals.board.oldest_ms > UNKNOWN_AFTER_MS or missing.any():
            unknown = missing | (self.age_ms > UNKNOWN_AFTER_MS)
            estimate[unknown] = 0.0 if unknown.all() else float(estimate[~unknown].mean())
        np.maximum(estimate, signals.own_in_flight[at], out=estimate)
        return estimate

    @property
    def pending_prefill_tokens(self) -> Floats:
        """Uncached prompt tokens, as guessed, of all dispatches whose first token hasn't come (own ones at
        once, others' as the log tells)."""
        column: Floats = self._signals.pending[0][self.instances]
        return column

    @property
    def pending_attention_ktok2(self) -> Floats:
        """Their attention work, in squared thousands of tokens."""
        column: Floats = self._signals.pending[1][self.instances]
        return column

    def matched_tokens(self, blocks: tuple[int, ...], block_tokens: int = 512) -> Floats:
        """Tokens of the prompt's blocks that each instance is *thought* to have cached.

        RuntimeError where the run keeps no placements (the policy set must ask for them).
        """
        blocks_matched = self._signals.matched_blocks(blocks)[self.instances]
        return blocks_matched.astype(np.float64) * np.float64(block_tokens)


@dataclass(frozen=True, slots=True)
class RegionView:
    """One region as a router sees it from its entry region. ``outstanding`` is summed over instances."""

    region: int
    name: str
    rtt_ms: float
    egress_price_per_gb: float
    routable: int
    outstanding: float
    own_in_flight: float


class FleetView:
    """All regions as one router sees them."""

    def __init__(self, now_ms: float, router: RouterLayout) -> None:
        self.now_ms = now_ms
        self._router = router

    def __len__(self) -> int:
        return self._router.region_count()

    def candidates(self, region: int) -> CandidatesView:
        """The region's instances that may be chosen."""
        return self._router.candidates(self.now_ms, region)

    def region(self, region: int) -> RegionView:
        """Its summary."""
        candidates = self.candidates(region)
        name, rtt_ms, price = self._router.link(region)
        return RegionView(
            region,
            name,
            rtt_ms,
            price,
            len(candidates),
            float(candidates.outstanding.sum()),
            float(candidates.own_in_flight.sum()),
        )


class RouterLayout:
    """What a router knows of the fleet's layout: who may be chosen, and the links from its region."""

    def __init__(
        self,
        signals: RouterSignals,
        routable: list[Ints],
        links: Sequence[tuple[str, float, float]],
        kv_tokens: Floats,
        engines: tuple[str, ...],
    ) -> None:
        """``routable``: for each region its instances that may be chosen, kept up to date."""
        self._signals = signals
        self._routable = routable
        self._links = links
        self._kv_tokens = kv_tokens
        self._engines = engines

    def ready(self, region: int) -> int:
        """How many of the region's instances may be chosen."""
        return len(self._routable[region])

    def region_count(self) -> int:
        """How many regions there are."""
        return len(self._routable)

    def candidates(self, now_ms: float, region: int) -> CandidatesView:
        """The region's instances that may be chosen; may be empty."""
        return CandidatesView(now_ms, self._routable[region], self._signals, self._kv_tokens, self._engines)

    def link(self, region: int) -> tuple[str, float, float]:
        """``(name, RTT in ms, egress price per GB)`` of a region, from this router's."""
        return self._links[region]
