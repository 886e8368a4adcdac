"""fleet.outcomes: how each attempt ended."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import DurationMs, EpochMs, Event, Name, PoolId, Sentence, Tokens, WorkTokens

Cause = Literal["ok", "timeout", "cancelled", "failed", "shed", "lost"]
CAUSES: tuple[Cause, ...] = ("ok", "timeout", "cancelled", "failed", "shed", "lost")


class Outcome(Event):
    """The end of one attempt of an intent. Carries its own decision's predictions: no join is needed.

    An intent is what a user wanted once; its attempts share ``intent_id``. Service levels run from the
    first attempt's clock (``intent_started_at_ms``). Figures that nobody measured are None.
    """

    schema_name: ClassVar[str] = "outcome"
    key_fields: ClassVar[tuple[str, ...]] = (
        "router",
        "pool",
        "entry_region",
        "region",
        "instance",
        "service_class",
    )

    decision_id: Name
    intent_id: Name
    intent_inferred: bool = Field(description="True where no Idempotency-Key named the intent.")
    attempt: Annotated[int, Field(ge=1, le=1000)]
    router: Name
    router_boot: Name
    tenant: Name
    service_class: Name
    pool: PoolId
    entry_region: Name
    residency: Name | None = None
    region: Name | None = None
    instance: Name | None = None
    instance_boot: Name | None = None
    cause: Cause
    rule: Sentence | None = Field(default=None, description="Which rule shed it, or what failed.")
    inferred: bool = Field(default=False, description="True where the control plane closed it (lost).")
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    at_ms: EpochMs = Field(description="When this attempt ended.")
    intent_started_at_ms: EpochMs
    started_at_ms: EpochMs
    first_token_at_ms: EpochMs | None = None
    queue_ms: DurationMs | None = Field(default=None, description="Wait at the router before dispatch.")
    ttft_ms: DurationMs | None = Field(
        default=None, description="From the intent's start to its first token."
    )
    tpot_ms: DurationMs | None = Field(
        default=None, description="Mean time per output token after the first."
    )
    e2e_ms: DurationMs | None = Field(default=None, description="From the intent's start to the end.")
    prompt_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    wasted_tokens: Tokens | None = Field(default=None, description="Output tokens that served nobody.")
    ttft_slo_ms: DurationMs
    tpot_slo_ms: DurationMs
    deadline_at_ms: EpochMs
    within_slo: bool = Field(description="Ended ok, TTFT and TPOT within the class's levels.")
    predicted_ttft_ms: DurationMs | None = None
    predicted_tpot_ms: DurationMs | None = None
    work_tokens: WorkTokens | None = None
