"""Our own minds as balancers. The rates are the engine's fitted ones, with an error that can be injected."""

from __future__ import annotations

from random import Random

import numpy as np

from minds.tokenpilot.predicted_ttft import Prospect, StepRates, choose
from sim.des.policy import Refusal, RequestView
from sim.des.views import CandidatesView
from sim.engine.step_model import params_named
from sim.policies.plain import Stateless


class PredictedTtft(Stateless):
    """:mod:`minds.tokenpilot.predicted_ttft` on what the router's view shows."""

    def __init__(
        self,
        near_tie_ms: float = 5.0,
        near_tie_ratio: float = 0.05,
        kv_barrier: float = 0.95,
        rate_error: float = 0.0,
    ) -> None:
        """``rate_error``: every instance's rates are wrong by a factor ``exp(rate_error * N(0, 1))``."""
        self._near_tie_ms = near_tie_ms
        self._near_tie_ratio = near_tie_ratio
        self._kv_barrier = kv_barrier
        self._rate_error = rate_error
        self._rates: dict[tuple[int, str], StepRates] = {}

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The mind's choice."""
        kv_tokens = candidates.kv_tokens
        columns = zip(
            candidates.instances.tolist(),
            candidates.engines,
            candidates.pending_prefill_tokens.tolist(),
            candidates.pending_attention_ktok2.tolist(),
            candidates.matched_tokens(request.blocks).tolist(),
            candidates.running.tolist(),
            (candidates.kv_usage * kv_tokens).tolist(),
            kv_tokens.tolist(),
            strict=True,
        )
        prospects = [
            Prospect(
                self._rates_of(instance, engine),
                pending,
                attention,
                matched,
                None if running != running else running,  # NaN is unknown
                None if resident != resident else resident,
                capacity,
            )
            for instance, engine, pending, attention, matched, running, resident, capacity in columns
        ]
        return choose(
            prospects,
            request.prompt_tokens,
            rng.getrandbits(63),
            near_tie_ms=self._near_tie_ms,
            near_tie_ratio=self._near_tie_ratio,
            kv_barrier=self._kv_barrier,
        )

    def _rates_of(self, instance: int, engine: str) -> StepRates:
        rates = self._rates.get((instance, engine))
        if rates is None:
            params = params_named(engine)
            wrong = float(np.exp(self._rate_error * Random(f"rates-{instance}").gauss(0.0, 1.0)))
            rates = StepRates(
                params.base_ms * wrong,
                params.decode_ms * wrong,
                params.resident_ms * wrong,
                params.prefill_ms * wrong,
                params.attention_ms * wrong,
            )
            self._rates[(instance, engine)] = rates
        return rates
