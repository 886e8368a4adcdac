"""Prefix affinity with a switch to load: the rules of SGLang's router and of AIBrix."""

from __future__ import annotations

from random import Random

import numpy as np

from sim.des.policy import Refusal, RequestView
from sim.des.views import CandidatesView
from sim.policies.plain import Stateless, least


class CacheAware(Stateless):
    """SGLang's cache_aware: least loaded while the load is uneven, else the best prefix match, if good."""

    def __init__(
        self, imbalance: float = 64.0, imbalance_ratio: float = 1.5, match_share: float = 0.3
    ) -> None:
        """Uneven: ``max - min > imbalance`` and ``max > imbalance_ratio * min`` outstanding requests."""
        self._imbalance = imbalance
        self._ratio = imbalance_ratio
        self._match_share = match_share

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position by the rule above."""
        outstanding = candidates.outstanding
        low, high = float(outstanding.min()), float(outstanding.max())
        if not (high - low > self._imbalance and high > self._ratio * low):
            matched = candidates.matched_tokens(request.blocks)
            best = float(matched.max())
            if best > self._match_share * request.prompt_tokens:
                return least(-matched, rng)
        return least(outstanding, rng)


class AibrixPrefix(Stateless):
    """AIBrix prefix-cache: least loaded while uneven, else the highest match among those not overloaded."""

    def __init__(self, imbalance: float = 8.0, sigmas: float = 1.0) -> None:
        """Overloaded: more than the mean plus ``sigmas`` standard deviations of running requests."""
        self._imbalance = imbalance
        self._sigmas = sigmas

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position by the rule above."""
        running = candidates.outstanding
        if float(running.max() - running.min()) > self._imbalance:
            return least(running, rng)
        matched = candidates.matched_tokens(request.blocks)
        allowed = running <= running.mean() + self._sigmas * running.std()
        score = np.where(allowed, -matched, np.inf)
        ties = (score == score.min()).nonzero()[0]
        return int(ties[least(running[ties], rng)])
