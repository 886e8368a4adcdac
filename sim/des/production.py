"""Thin adapters: the production decision code of ``minds/`` as policies of the simulator."""

from __future__ import annotations

from random import Random

import numpy as np

from minds.tokenpilot.least_outstanding import Standing, choose, estimates, trust_of
from sim.des.policy import OutcomeView, Refusal, RequestView
from sim.des.views import CandidatesView


class LeastOutstandingMind:
    """The router's own least-outstanding mind (:mod:`minds.tokenpilot.least_outstanding`).

    It gets what the router feeds it: readings, and this router's own requests. The dispatches of others,
    which the log tells the baselines here, the router doesn't count.
    """

    def __init__(self, *, valid_for_ms: float = 3_000.0) -> None:
        """``valid_for_ms``: how long a reading counts in full."""
        self._valid_for_ms = valid_for_ms

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The mind's choice; it does the correcting and the fading itself."""
        readings = candidates.waiting + candidates.running
        columns = zip(
            readings.tolist(),
            candidates.age_ms.tolist(),
            candidates.own_in_flight.tolist(),
            candidates.own_sent.tolist(),
            candidates.own_ended.tolist(),
            strict=True,
        )
        standings = [
            Standing(
                instance=str(number),
                region="",
                reading=None if np.isnan(reading) else reading,
                trust=0.0 if np.isnan(reading) else trust_of(age_ms, self._valid_for_ms),
                own_in_flight=int(in_flight),
                own_sent_since=int(sent),
                own_ended_since=int(ended),
            )
            for number, (reading, age_ms, in_flight, sent, ended) in enumerate(columns)
        ]
        return choose(estimates(standings), rng.getrandbits(63), standings)

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """It counts by dispatch, which the signals do here."""
