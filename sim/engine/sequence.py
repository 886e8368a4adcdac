"""What goes into the scheduler and what comes out of it: requests, step results, counters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as the engine sees it: lengths and block hashes, no text.

    ``output_tokens`` is the true output length (the caller knows it, a router must not); ``ends_with`` says
    why the output stops there. ``block_hashes`` are chained hashes of the full KV blocks of prompt and
    output, in order; they may stop early (blocks without a hash are never shared), so ``()`` means no prefix
    caching.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: Sequence[int] = ()
    ends_with: FinishReason = "length"


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that ran to its end. All times are in ms on the caller's clock.

    ``arrival_ms`` is when the front end got it, ``queued_ms`` when the scheduler did, ``scheduled_ms`` when
    it first ran. ``cached_tokens`` are prompt tokens that the prefix cache saved on the first admission.
    """

    request_id: str
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    arrival_ms: float
    queued_ms: float
    scheduled_ms: float
    first_token_ms: float
    finished_ms: float


@dataclass(slots=True)
class StepResult:
    """What one step brought forth.

    ``tokens`` holds the id of every request that got a token, one token each. ``ttft_ms`` has an entry per
    request that got its first; ``inter_token_ms`` counts all other tokens by their distance to the one before
    (nearly all of a step share one distance). ``iteration_tokens`` is what vLLM calls so: computed prompt
    tokens of prefills that completed, plus generated tokens.
    """

    duration_ms: float
    tokens: list[str] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    inter_token_ms: dict[float, int] = field(default_factory=dict)
    iteration_tokens: int = 0


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started.

    ``prompt_tokens`` and ``cached_prompt_tokens`` count when a prefill completes, ``prefix_query_tokens`` and
    ``prefix_hit_tokens`` when a request is first admitted; recomputing after a pre-emption counts in none of
    them (as in vLLM). ``cancelled`` is the emulator's own: vLLM has no such counter.
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    finished_stop: int = 0
    finished_length: int = 0
    submitted: int = 0
    cancelled: int = 0


class SequenceState:
    """The scheduler's own record of a request; nobody else changes it."""

    __slots__ = (
        "admitted",
        "alive",
        "arrival_ms",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "first_token_ms",
        "generated_tokens",
        "last_token_ms",
        "preemptions",
        "queued_ms",
        "registered_blocks",
        "request",
        "scheduled_ms",
    )

    def __init__(self, request: EngineRequest, queued_ms: float, arrival_ms: float) -> None:
        self.request = request
        self.arrival_ms = arrival_ms
        self.queued_ms = queued_ms
        self.scheduled_ms = 0.0
        self.first_token_ms = 0.0
        self.last_token_ms = 0.0
        self.admitted = False  # ran at least once: scheduled_ms and cached_tokens are set
        self.alive = True  # neither cancelled nor finished
        self.cached_tokens = 0
        self.computed_tokens = 0  # tokens whose KV is resident
        self.generated_tokens = 0
        self.preemptions = 0
        self.blocks: list[int] = []
        self.registered_blocks = 0

    @property
    def total_tokens(self) -> int:
        """Prompt plus what has been generated so far."""
        return self.request.prompt_tokens + self.generated_tokens
