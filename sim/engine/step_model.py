"""How long one engine step takes: a linear model with an attention term, fitted to measured engines.

``step_ms = a + b*B + c*KV_k + d*P + e*sum(chunk_k * (ctx_k + chunk_k / 2))``

with B the sequences that decode in this step, KV_k their resident tokens in thousands, P the prefill tokens
of the step, and for every prefill chunk its length and the context before it, both in thousands of tokens
(the attention cost of a chunk grows with all tokens that it looks back at, hence ``ctx + chunk / 2``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class StepParams:
    """One fitted engine: coefficients of the step model and the size of its KV cache.

    Units: ``base_ms`` a step; ``decode_ms`` a decoding sequence; ``resident_ms`` a thousand resident tokens
    of decoding sequences; ``prefill_ms`` a prefill token; ``attention_ms`` a squared thousand of tokens;
    ``kv_tokens`` tokens that the cache holds.
    """

    name: str
    base_ms: float
    decode_ms: float
    resident_ms: float
    prefill_ms: float
    attention_ms: float
    kv_tokens: int
    description: str


PARAM_SETS: Final[Mapping[str, StepParams]] = MappingProxyType(
    {
        p.name: p
        for p in (
            StepParams("S1", 4.41, 0.0344, 0.0299, 0.0141, 0.98, 945_029, "8B FP8 on one H200"),
            StepParams("S2", 11.0, 0.055, 0.028, 0.040, 1.25, 600_000, "70B FP8 on 4x H100, vLLM"),
            StepParams("S3", 13.2, 0.0375, 0.0376, 0.064, 2.5, 520_000, "70B FP8 on 2x H200, vLLM"),
            StepParams("S4", 6.42, 0.01, 0.049, 0.018, 1.0, 400_000, "8B on one H100, TensorRT-LLM"),
        )
    }
)
"""The fits by name. Their error on decode steps against the measured engine is 2.2 to 4.3 percent."""

FRONTEND_FIXED_MS: Final = 27.5
FRONTEND_PER_PROMPT_TOKEN_MS: Final = 0.014


def params_named(name: str) -> StepParams:
    """The parameter set with this name; ``ValueError`` names the known ones."""
    try:
        return PARAM_SETS[name]
    except KeyError:
        known = ", ".join(PARAM_SETS)
        raise ValueError(f"There is no engine parameter set {name!r}; choose one of {known}.") from None


def attention_ktok2(chunk_tokens: int, context_tokens: int) -> float:
    """Attention work of a prefill chunk after ``context_tokens``, in squared thousands of tokens."""
    return chunk_tokens * (context_tokens + chunk_tokens * 0.5) * 1e-6


def step_ms(
    params: StepParams,
    *,
    decoding: int,
    resident_tokens: int,
    prefill_tokens: int,
    attention_work_ktok2: float,
) -> float:
    """Duration of one step in ms.

    ``resident_tokens`` are the tokens in KV of the ``decoding`` sequences; ``attention_work_ktok2`` is the
    sum of :func:`attention_ktok2` over the step's prefill chunks.
    """
    return (
        params.base_ms
        + params.decode_ms * decoding
        + params.resident_ms * resident_tokens * 1e-3
        + params.prefill_ms * prefill_tokens
        + params.attention_ms * attention_work_ktok2
    )


def frontend_ms(prompt_tokens: int) -> float:
    """Time before a prompt reaches the scheduler (HTTP, tokenising, hand-over), in ms.

    The step model covers the accelerator only: measured times to first token lie above it by a fixed 25-30 ms
    and 0.010-0.018 ms a prompt token; these are the middles of both ranges.
    """
    return FRONTEND_FIXED_MS + FRONTEND_PER_PROMPT_TOKEN_MS * prompt_tokens
