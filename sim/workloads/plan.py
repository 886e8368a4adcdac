"""From a trace or the generator to the plan of intents that a load generator or a simulator plays.

No public trace carries regions, tenants, residency or classes. Here they are **synthesised** from the seed;
every report on such a run has to say so. Requests of one conversation (a session of the generator, or trace
rows that share their second prefix block) get the same class, tenant, entry region and residency.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sim.workloads.classes import DEFAULT_CLASSES, ClassProfile, normalised_shares
from sim.workloads.generator import (
    DEFAULT_TENANT_SHARES,
    MAX_REQUESTS,
    GeneratedRequest,
    GeneratorShape,
    generate,
)
from sim.workloads.traces import BLOCK_TOKENS, TraceRequest

DEFAULT_ENTRY_SHARES: Mapping[str, float] = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
DEFAULT_RESIDENCY_SHARES: Mapping[str, float] = {"eu": 0.1}

_UNTIMED_GAP_MS = 1_000.0  # between requests of a trace whose rows all bear the same time


@dataclass(frozen=True, slots=True)
class IntentSpec:
    """One user request to be made, with what it was promised.

    `at_ms` counts from the start of the run; `deadline_ms` and `ttft_slo_ms` from the start of the intent's
    first attempt, `client_timeout_ms` (wait for the first token) from that of each attempt. `tpot_slo_ms` is
    ms per output token after the first. `prefix_blocks` are the ids of the prompt's *full* 512-token blocks
    that others may share. `residency` None: any region may serve it. `model_version` None: the bare model
    name, whatever version the router takes for it.
    """

    intent_id: str
    at_ms: float
    service_class: str
    tenant: str
    entry_region: str
    residency: str | None
    input_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...]
    deadline_ms: float
    ttft_slo_ms: float
    tpot_slo_ms: float
    client_timeout_ms: float
    model_version: str | None = None


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What is synthesised around the requests: classes and their service levels, and who asks from where.

    `residency_shares` are fractions of all requests (the rest has no residency class); the other shares
    are scaled to the sum 1.
    """

    classes: Sequence[ClassProfile] = DEFAULT_CLASSES
    entry_shares: Mapping[str, float] = field(default_factory=lambda: DEFAULT_ENTRY_SHARES)
    tenant_shares: Mapping[str, float] = field(default_factory=lambda: DEFAULT_TENANT_SHARES)
    residency_shares: Mapping[str, float] = field(default_factory=lambda: DEFAULT_RESIDENCY_SHARES)


def plan_from_generator(
    *,
    duration_ms: float,
    rate_rps: float,
    seed: int = 0,
    shape: PlanShape | None = None,
    generator: GeneratorShape | None = None,
    run_id: str | None = None,
) -> tuple[IntentSpec, ...]:
    """A plan of `duration_ms` from the built-in generator at a mean of `rate_rps`; see `plan_from_trace`."""
    shape = shape or PlanShape()
    requests = generate(
        rate_rps=rate_rps,
        duration_ms=duration_ms,
        seed=seed,
        classes=shape.classes,
        tenant_shares=shape.tenant_shares,
        shape=generator,
    )
    return _plan(requests, seed, shape, run_id)


def plan_from_trace(
    requests: Sequence[TraceRequest],
    *,
    duration_ms: float | None = None,
    rate_rps: float | None = None,
    seed: int = 0,
    shape: PlanShape | None = None,
    run_id: str | None = None,
) -> tuple[IntentSpec, ...]:
    """A plan from a trace's requests (in order of arrival), cut or looped to `duration_ms`.

    With `rate_rps` the time is rescaled so that the requests played have exactly that mean rate; else the
    trace's own timing is kept. Without a duration the trace is played once. A repetition gets block ids of
    its own beyond each prompt's first block, so that looping fakes no cache hits. `run_id` (default: from
    the seed) starts every intent id; give a fresh one per run against a log that is kept. ValueError for an
    empty trace or impossible figures.
    """
    if not requests:
        raise ValueError("A plan needs at least one request; the trace has none.")
    for what, value in (("duration in ms", duration_ms), ("rate in requests/s", rate_rps)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"The {what} must be a positive number, not {value}.")
    looped = _looped(requests)
    if rate_rps is None:
        if duration_ms is None:
            played = list(requests)
        else:
            in_time = itertools.takewhile(lambda request: request.at_ms < duration_ms, looped)
            played = list(itertools.islice(in_time, MAX_REQUESTS + 1))
    else:
        count = len(requests) if duration_ms is None else max(1, round(rate_rps * duration_ms / 1_000.0))
        if count <= MAX_REQUESTS:
            played = _rescaled(list(itertools.islice(looped, count + 1)), count * 1_000.0 / rate_rps)
        else:
            played = []
    if not 0 < len(played) <= MAX_REQUESTS:
        raise ValueError(
            f"The plan would have more than {MAX_REQUESTS} requests; lower the rate or the duration."
        )
    return _plan(played, seed, shape or PlanShape(), run_id)


def _looped(requests: Sequence[TraceRequest]) -> Iterator[TraceRequest]:
    """The trace again and again, a mean gap between its end and its next start; times from 0."""
    start_ms = requests[0].at_ms
    span_ms = requests[-1].at_ms - start_ms
    gap_ms = span_ms / (len(requests) - 1) if span_ms > 0 else _UNTIMED_GAP_MS
    stride = 1 + max((block for request in requests for block in request.prefix_blocks), default=0)
    for loop in itertools.count():
        for request in requests:
            blocks = request.prefix_blocks
            yield TraceRequest(
                request.at_ms - start_ms + loop * (span_ms + gap_ms),
                request.input_tokens,
                request.output_tokens,
                blocks[:1] + tuple(block + loop * stride for block in blocks[1:]) if loop else blocks,
            )


def _rescaled(requests: list[TraceRequest], duration_ms: float) -> list[TraceRequest]:
    """All but the last request, with time scaled so that the last would come at `duration_ms`."""
    *played, after = requests
    if after.at_ms <= 0.0:  # no timing to scale: spread evenly
        times_ms = [index * duration_ms / len(played) for index in range(len(played))]
    else:
        times_ms = [request.at_ms * duration_ms / after.at_ms for request in played]
    return [
        TraceRequest(at_ms, request.input_tokens, request.output_tokens, request.prefix_blocks)
        for at_ms, request in zip(times_ms, played, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Persona:
    """Who asks: drawn once per conversation."""

    profile: ClassProfile
    tenant: str
    entry_region: str
    residency: str | None


def _plan(
    requests: Sequence[TraceRequest], seed: int, shape: PlanShape, run_id: str | None
) -> tuple[IntentSpec, ...]:
    draw = _PersonaSource(seed, shape)
    personas: dict[Hashable, _Persona] = {}
    profiles = {profile.name: profile for profile in shape.classes}
    run_id = run_id if run_id is not None else f"seed{seed}"
    specs: list[IntentSpec] = []
    for index, request in enumerate(requests):
        key = _conversation(index, request)
        persona = personas.get(key)
        if persona is None:
            persona = personas[key] = draw()
        profile, tenant = persona.profile, persona.tenant
        if isinstance(request, GeneratedRequest):
            profile, tenant = profiles[request.service_class], request.tenant
        specs.append(
            IntentSpec(
                intent_id=f"{run_id}-{index:06d}",
                at_ms=request.at_ms,
                service_class=profile.name,
                tenant=tenant,
                entry_region=persona.entry_region,
                residency=persona.residency,
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
                prefix_blocks=request.prefix_blocks[: request.input_tokens // BLOCK_TOKENS],
                deadline_ms=profile.deadline_ms,
                ttft_slo_ms=profile.ttft_slo_ms,
                tpot_slo_ms=profile.tpot_slo_ms,
                client_timeout_ms=profile.client_timeout_ms,
            )
        )
    return tuple(specs)


def _conversation(index: int, request: TraceRequest) -> Hashable:
    """What names a conversation; the first block says nothing, since all requests may share it."""
    if isinstance(request, GeneratedRequest):
        return request.session
    return ("block", request.prefix_blocks[1]) if len(request.prefix_blocks) > 1 else ("row", index)


class _PersonaSource:
    """Draws personas from one seeded stream."""

    def __init__(self, seed: int, shape: PlanShape) -> None:
        free = 1.0 - sum(shape.residency_shares.values())
        if free < 0 or any(share < 0 for share in shape.residency_shares.values()):
            raise ValueError(
                f"The residency shares must be fractions that sum to at most 1: {shape.residency_shares}."
            )
        self._rng = random.Random(f"personas-{seed}")
        self._classes = list(shape.classes)
        self._class_shares = normalised_shares([profile.share for profile in shape.classes], "class shares")
        self._tenants = list(shape.tenant_shares)
        self._tenant_shares = normalised_shares(list(shape.tenant_shares.values()), "tenant shares")
        self._entries = list(shape.entry_shares)
        self._entry_shares = normalised_shares(list(shape.entry_shares.values()), "entry shares")
        self._residencies: list[str | None] = [None, *shape.residency_shares]
        self._residency_shares = (free, *shape.residency_shares.values())

    def __call__(self) -> _Persona:
        choose = self._rng.choices
        return _Persona(
            choose(self._classes, self._class_shares)[0],
            choose(self._tenants, self._tenant_shares)[0],
            choose(self._entries, self._entry_shares)[0],
            choose(self._residencies, self._residency_shares)[0],
        )
