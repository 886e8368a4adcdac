"""From an HTTP request to what is asked: tenant, class, pool, residency, sizes. Keeps no prompt text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from minds.fleetmind.eligibility import pool_of
from minds.identity import body_digest
from minds.policy import CompiledPolicy, Level, TenantRule
from minds.work import OutputEstimator, PromptSizer, max_output_tokens, prompt_size, work_tokens
from router.refusals import Refusal, malformed

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is estimated of a request before it runs."""

    text_bytes: int
    token_ids: int
    prompt_tokens: int
    work_tokens: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as the router decides on it. Durations in milliseconds."""

    tenant: TenantRule
    level: Level
    ttft_slo_ms: float
    tpot_slo_ms: float
    deadline_ms: float
    residency: str | None
    model: str
    pool: str
    path: str
    stream: bool
    sizes: Sizes
    key: str | None
    digest: str
    claimed_attempt: int | None
    claimed_start_ms: int | None
    forced_residency_broken: bool = False


class Estimators:
    """What the router has learned of sizes from its own outcomes."""

    def __init__(self) -> None:
        self.outputs = OutputEstimator()
        self.prompts = PromptSizer()

    def sizes(
        self, pool: str, service_class: str, body: Mapping[str, Any], prompt_tokens: int | None = None
    ) -> Sizes:
        """Estimate a request's prompt tokens (where the caller does not give them) and its work."""
        text_bytes, token_ids = prompt_size(body) if prompt_tokens is None else (0, prompt_tokens)
        prompt = self.prompts.estimate(pool, text_bytes, token_ids)
        choices = body.get("n")
        count = choices if isinstance(choices, int) and 1 <= choices <= MAX_CHOICES else 1
        output = self.outputs.predict(service_class, max_output_tokens(body)) * count
        return Sizes(text_bytes, token_ids, prompt, work_tokens(prompt, output))


def parse_body(raw: bytes) -> dict[str, Any]:
    """The request's JSON object. Raises Refusal (400); the message never quotes the body."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise malformed("The body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise malformed("The body must be a JSON object.")
    return body


def tenant_of(headers: Mapping[str, str], policy: CompiledPolicy) -> TenantRule:
    """Who asks. Raises Refusal (401) where the policy has tenants and the key is none of theirs."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    tenant = policy.tenant_of(key.strip() if scheme.lower() == "bearer" else None)
    if tenant is None:
        raise Refusal(
            401, "unknown_key", "The API key is missing or unknown; send Authorization: Bearer <key>."
        )
    return tenant


def read_ask(
    *,
    headers: Mapping[str, str],
    path: str,
    raw: bytes,
    body: Mapping[str, Any],
    policy: CompiledPolicy,
    ready_endpoints: Mapping[str, int],
    estimators: Estimators,
    prompt_tokens: int | None = None,
) -> Ask:
    """Classify a request. Raises Refusal: 400 malformed, 401 unknown key, 404 unknown model.

    ``prompt_tokens`` is the caller's own count, for requests that come without their prompt.
    """
    tenant = tenant_of(headers, policy)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise malformed("The field model must name a model.")
    stream = body.get("stream", False)
    if not isinstance(stream, bool | None):
        raise malformed("The field stream must be true or false.")
    class_name = headers.get("x-tokenfleet-class") or policy.default_class
    level = policy.classes.get(class_name)
    if level is None:
        known = ", ".join(sorted(policy.classes))
        raise malformed(f"There is no such service class (x-tokenfleet-class); there are: {known}.")
    pool = pool_of(model, ready_endpoints)
    if pool is None:
        raise Refusal(404, "unknown_model", "No pool serves this model; GET /v1/models lists what there is.")
    residency = headers.get("x-tokenfleet-residency") or None
    if residency is not None and not _is_name(residency):
        raise malformed("The residency class must be a name of letters, digits and . _ : @ / + -")
    broken = tenant.residency is not None and residency not in (None, tenant.residency)
    key = headers.get("Idempotency-Key") or None
    if key is not None and len(key) > 1000:
        raise malformed("The idempotency key must be a text of at most 1,000 characters.")
    attempt = _number(headers, "x-tokenfleet-attempt")
    started = _number(headers, "x-tokenfleet-intent-start-ms")
    return Ask(
        tenant=tenant,
        level=level,
        ttft_slo_ms=min(level.ttft_slo_ms, _number(headers, "x-slo-ttft-ms", level.ttft_slo_ms)),
        tpot_slo_ms=min(level.tpot_slo_ms, _number(headers, "x-slo-tpot-ms", level.tpot_slo_ms)),
        deadline_ms=min(level.deadline_ms, _number(headers, "x-tokenfleet-deadline-ms", level.deadline_ms)),
        residency=tenant.residency or residency,
        model=model,
        pool=pool,
        path=path,
        stream=bool(stream),
        sizes=estimators.sizes(pool, level.name, body, prompt_tokens),
        key=key,
        digest=body_digest(tenant.tenant, path, raw),
        claimed_attempt=None if attempt is None else int(attempt),
        claimed_start_ms=None if started is None else int(started),
        forced_residency_broken=broken,
    )


def _is_name(value: str) -> bool:
    return len(value) <= 200 and value.isascii() and all(c.isalnum() or c in "._:@/+-" for c in value)


def _number(headers: Mapping[str, str], name: str, missing: float | None = None) -> Any:
    """A header's number, bounded away from nonsense. Raises Refusal (400)."""
    text = headers.get(name)
    if text is None:
        return missing
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise malformed(f"The header {name} must be a number that is not negative.")
    return value
