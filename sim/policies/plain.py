"""Policies that know nothing of tokens: random, and a consistent hash of the prompt's first blocks."""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from minds.seeds import mix64
from sim.des.policy import OutcomeView, Refusal, RequestView
from sim.des.views import CandidatesView


def least(values: NDArray[np.float64], rng: Random) -> int:
    """The position of the least value; equal ones are broken at random."""
    ties = (values == values.min()).nonzero()[0]
    return int(ties[0] if len(ties) == 1 else ties[rng.randrange(len(ties))])


class Stateless:
    """A balancer that learns nothing of ends."""

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Nothing is learned."""


class RandomChoice(Stateless):
    """Any instance, all alike."""

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """A position at random."""
        return rng.randrange(len(candidates))


class PrefixHash(Stateless):
    """Rendezvous hashing (Thaler and Ravishankar 1998) of the first ``blocks`` prefix blocks.

    At least two, since one first block may be common to all. A prompt of fewer full blocks has nothing that
    tells it apart and goes to any instance.
    """

    def __init__(self, blocks: float = 3.0) -> None:
        self._blocks = int(blocks)

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The instance with the highest hash together with these blocks."""
        if len(request.blocks) < self._blocks:
            return rng.randrange(len(candidates))
        key = 0
        for block in request.blocks[: self._blocks]:
            key = mix64(key ^ block)
        weights = [mix64(key ^ mix64(int(instance))) for instance in candidates.instances]
        return weights.index(max(weights))
