"""fleet.decisions: what a router decided and from what it decided it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import DurationMs, EpochMs, Event, Name, PoolId, Ratio, Record, Sentence, Tokens, WorkTokens

Verdict = Literal["dispatched", "shed"]


class RowVersion(Record):
    """Which version of a row a decision saw."""

    row: Name
    epoch: Annotated[int, Field(ge=0, le=2**53)]
    version: Annotated[int, Field(ge=0, le=2**53)]


class Candidate(Record):
    """One instance as the mind saw it, own corrections included."""

    instance: Name
    region: Name
    requests_running: Annotated[float, Field(ge=0)] | None = None
    requests_waiting: Annotated[float, Field(ge=0)] | None = None
    own_in_flight: Annotated[int, Field(ge=0)] = 0
    own_since_sample: Annotated[int, Field(ge=0)] = 0
    own_ended_since_sample: Annotated[int, Field(ge=0)] = 0
    reading_trust: Ratio | None = None
    reading_age_ms: DurationMs | None = None
    matched_ratio: Ratio | None = None
    score: float | None = None
    excluded_by: Sentence | None = None


class DecisionInput(Record):
    """All that the mind was given: with it the decision can be replayed exactly."""

    code_version: Name
    seed: Annotated[int, Field(ge=0, le=2**53)]
    now_ms: EpochMs
    rows: list[RowVersion] = []
    candidates: list[Candidate] = []
    lease_work_tokens: WorkTokens | None = None
    lease_in_use_work_tokens: WorkTokens | None = None


class Decision(Event):
    """One attempt's decision: dispatched to an instance, or shed with the rule."""

    schema_name: ClassVar[str] = "decision"
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
    intent_inferred: bool
    attempt: Annotated[int, Field(ge=1, le=1000)]
    at_ms: EpochMs
    intent_started_at_ms: EpochMs
    deadline_at_ms: EpochMs
    router: Name
    router_boot: Name
    tenant: Name
    service_class: Name
    pool: PoolId
    entry_region: Name
    residency: Name | None = None
    verdict: Verdict
    rule: Sentence | None = None
    region: Name | None = None
    instance: Name | None = None
    instance_boot: Name | None = None
    lease_id: Name | None = None
    estimated_prompt_tokens: Tokens | None = None
    ttft_slo_ms: DurationMs
    tpot_slo_ms: DurationMs
    predicted_ttft_ms: DurationMs | None = None
    predicted_tpot_ms: DurationMs | None = None
    work_tokens: WorkTokens
    input: DecisionInput | None = Field(default=None, description="In full for refusals and a sample.")
