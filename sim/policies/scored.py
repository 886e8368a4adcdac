"""One score for each instance, the best one wins: GIE/llm-d, Dynamo, LMetric, LPWL, Mooncake, SMG.

Readings that are unknown count as the mean of the known ones (0 where nothing is known): no peer's rule says
what to do then, and both "idle" and "full" would make an instance stand out.
"""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from sim.des.policy import Refusal, RequestView
from sim.des.views import CandidatesView
from sim.engine.step_model import params_named
from sim.policies.plain import Stateless, least

Floats = NDArray[np.float64]


def known(values: Floats) -> Floats:
    """The column with unknown entries at the mean of the known ones."""
    unknown = np.isnan(values)
    if unknown.any():
        values = values.copy()
        values[unknown] = 0.0 if unknown.all() else float(values[~unknown].mean())
    return values


def uncached_tokens(request: RequestView, candidates: CandidatesView) -> Floats:
    """Prompt tokens that each instance would have to compute, as far as the router knows; at least one."""
    return np.maximum(1.0, request.prompt_tokens - candidates.matched_tokens(request.blocks))


def queued(candidates: CandidatesView) -> Floats:
    """Requests in the queue at the sample, and those sent since."""
    return known(candidates.waiting) + candidates.own_sent + candidates.logged_sent


class GatewayScorers(Stateless):
    """The default scorers of the Gateway API Inference Extension and llm-d: queue, KV usage, prefix.

    ``argmax w_q*(max_q - q)/(max_q - min_q) + w_kv*(1 - kv) + w_p*matched/total``; the queue term is 1 where
    all queues are equal.
    """

    def __init__(self, queue_weight: float = 2.0, kv_weight: float = 2.0, prefix_weight: float = 3.0) -> None:
        self._queue, self._kv, self._prefix = queue_weight, kv_weight, prefix_weight

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position with the highest score."""
        queue = queued(candidates)
        spread = float(queue.max() - queue.min())
        queue_score = (queue.max() - queue) / spread if spread > 0 else np.ones(len(queue))
        matched = candidates.matched_tokens(request.blocks) / request.prompt_tokens
        score = (
            self._queue * queue_score
            + self._kv * (1.0 - known(candidates.kv_usage))
            + self._prefix * np.minimum(1.0, matched)
        )
        return least(-score, rng)


class DynamoKv(Stateless):
    """NVIDIA Dynamo's KV router at temperature 0, everything in blocks of KV memory on the device.

    ``argmin w_p*max(0, (active_prefill + input)/block - overlap) + decode_blocks + w_a*active``.
    """

    def __init__(self, prefill_weight: float = 1.0, active_weight: float = 0.0) -> None:
        self._prefill, self._active = prefill_weight, active_weight

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position with the least cost."""
        block = 512.0
        prefill = (candidates.pending_prefill_tokens + request.prompt_tokens) / block
        overlap = candidates.matched_tokens(request.blocks) / block
        decode = known(candidates.kv_usage) * candidates.kv_tokens / block
        cost = (
            self._prefill * np.maximum(0.0, prefill - overlap)
            + decode
            + self._active * candidates.outstanding
        )
        return least(cost, rng)


class LMetric(Stateless):
    """LMetric: ``argmin (pending_prefill + uncached_input) * (batch + 1)``."""

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position with the least product."""
        work = candidates.pending_prefill_tokens + uncached_tokens(request, candidates)
        return least(work * (candidates.outstanding + 1.0), rng)


class LeastPrefillWork(Stateless):
    """LPWL: ``argmin pending_prefill + uncached_input``."""

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position with the least prefill work."""
        return least(candidates.pending_prefill_tokens + uncached_tokens(request, candidates), rng)


class MooncakeConductor(Stateless):
    """Mooncake's conductor: ``argmin transfer + queue + prefill`` time, at the engine's prefill rates.

    Engines here can't move a prefix from one to another, so there is no transfer, and a prefix that is
    elsewhere has to be computed.
    """

    def __init__(self, queue_weight: float = 1.0) -> None:
        self._queue = queue_weight

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position with the least time."""
        rates = [params_named(engine) for engine in candidates.engines]
        token_ms = np.array([rate.prefill_ms for rate in rates])
        attention_ms = np.array([rate.attention_ms for rate in rates])
        uncached = uncached_tokens(request, candidates)
        attention = uncached * (request.prompt_tokens - 0.5 * uncached) * 1e-6
        prefill = token_ms * uncached + attention_ms * attention
        queue = token_ms * candidates.pending_prefill_tokens
        queue += attention_ms * candidates.pending_attention_ktok2
        return least(prefill + self._queue * queue, rng)


class SmgLeastLoad(Stateless):
    """SMG least_load: ``(queued + in-flight tokens)/throughput + w*k/(1 - k)``, tokens sent since the poll
    included; throughput is the engine's prefill rate, k the KV usage."""

    def __init__(self, kv_weight: float = 0.15) -> None:
        self._kv = kv_weight
        self._mean_prompt = 1_000.0

    def choose(
        self, now_ms: float, request: RequestView, candidates: CandidatesView, rng: Random
    ) -> int | Refusal:
        """The position with the least load."""
        self._mean_prompt += 0.01 * (request.prompt_tokens - self._mean_prompt)
        usage = np.minimum(0.999, known(candidates.kv_usage))
        tokens = usage * candidates.kv_tokens + known(candidates.waiting) * self._mean_prompt
        tokens += candidates.own_sent_tokens + candidates.logged_sent_tokens
        per_s = np.array([1_000.0 / params_named(engine).prefill_ms for engine in candidates.engines])
        return least(tokens / per_s + self._kv * usage / (1.0 - usage), rng)
