"""The instance with the least predicted time to first token: queue and uncached prefill at its own rates.

The step model ``step_ms = a + b*B + c*KV_k + d*P + e*attention`` (see ``docs/design.md``) is summed over the
prefill that is ahead and the request's own. Attention work telescopes: however a prompt of L tokens with C of
them cached is cut into chunks, it is ``u*(C + u/2)`` squared tokens with ``u = L - C``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minds.seeds import pick

NEAR_TIE_MS = 5.0
NEAR_TIE_RATIO = 0.05
"""Predictions within 5 ms plus a twentieth of the least are as good as equal; the seed picks one of them."""
KV_BARRIER = 0.95
"""An instance that would be fuller than this has to pre-empt or to wait; it is taken only if all would be."""


@dataclass(frozen=True, slots=True)
class StepRates:
    """Fitted rates of one instance: ms a step, a decoding sequence, a thousand resident tokens, a prefill
    token, a squared thousand of tokens; and the tokens of a full step."""

    base_ms: float
    decode_ms: float
    resident_ms: float
    prefill_ms: float
    attention_ms: float
    step_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Prospect:
    """One candidate for one request, as far as the router knows it.

    ``pending_tokens`` and ``pending_attention_ktok2`` are uncached prefill that is ahead (the router's own
    dispatches and those the log told of, until their first tokens). ``running`` and ``resident_tokens`` are
    None where no fresh sample is at hand.
    """

    rates: StepRates
    pending_tokens: float
    pending_attention_ktok2: float
    cached_tokens: float
    running: float | None
    resident_tokens: float | None
    kv_tokens: float


def predicted_ttft_ms(prospect: Prospect, prompt_tokens: int) -> float:
    """Engine time to first token in ms: all prefill ahead, then this one, with the batch decoding along.

    What is unknown of the batch counts as an empty one: the router's own dispatches still tell candidates
    apart.
    """
    rates = prospect.rates
    cached = min(max(0.0, prospect.cached_tokens), prompt_tokens - 1.0)
    uncached = prompt_tokens - cached
    tokens = max(0.0, prospect.pending_tokens) + uncached
    running = prospect.running or 0.0
    budget = max(1.0, rates.step_tokens - running)
    steps = -(-tokens // budget)
    step_ms = (
        rates.base_ms
        + rates.decode_ms * running
        + rates.resident_ms * (prospect.resident_tokens or 0.0) * 1e-3
    )
    attention = max(0.0, prospect.pending_attention_ktok2) + uncached * (cached + 0.5 * uncached) * 1e-6
    return steps * step_ms + rates.prefill_ms * tokens + rates.attention_ms * attention


def fits(prospect: Prospect, prompt_tokens: int, barrier: float = KV_BARRIER) -> bool:
    """Whether the KV memory has room for it and all that is ahead; an unknown memory counts as roomy."""
    if prospect.resident_tokens is None:
        return True
    needed = prospect.resident_tokens + prospect.pending_tokens + prompt_tokens - prospect.cached_tokens
    return needed <= barrier * prospect.kv_tokens


def choose(
    prospects: Sequence[Prospect],
    prompt_tokens: int,
    seed: int,
    *,
    near_tie_ms: float = NEAR_TIE_MS,
    near_tie_ratio: float = NEAR_TIE_RATIO,
    kv_barrier: float = KV_BARRIER,
) -> int:
    """The index of the least prediction among those with room; near-ties are broken by the seed.

    ValueError where there is no candidate.
    """
    if not prospects:
        raise ValueError("There is no instance to choose from; filter and refuse before choosing.")
    roomy = [i for i, prospect in enumerate(prospects) if fits(prospect, prompt_tokens, kv_barrier)]
    predicted = {i: predicted_ttft_ms(prospects[i], prompt_tokens) for i in roomy or range(len(prospects))}
    bound = min(predicted.values()) * (1.0 + near_tie_ratio) + near_tie_ms
    ties = [i for i, value in predicted.items() if value <= bound]
    return ties[pick(seed, len(ties), salt=2)]
