"""The static cap on in-flight work of a region and pool, from the operators' policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minds.policy import DEFAULT_CLASS
from schemas.policy import Cap
from schemas.tables import InstanceState

NO_CAP = Cap()


def cap_terms(policy: Any | None, pool: str) -> Any:
    """The cap's terms for this pool: its own entry, else that of ``*``, else no cap.

    ``policy`` is a schemas.policy.PolicyRow, its struct, or None.
    """
    caps = {cap.pool: cap for cap in (policy.caps if policy is not None else ())}
    return caps.get(pool) or caps.get("*") or NO_CAP


def class_shares(policy: Any | None) -> dict[str, float]:
    """Each class's static share of every cap; one default class without a policy."""
    shares = {item.name: float(item.share) for item in (policy.classes if policy is not None else ())}
    return shares or {DEFAULT_CLASS: 1.0}


def static_cap(
    work_tokens_per_endpoint: float | None,
    states: Iterable[InstanceState],
    last_cap_work_tokens: float | None,
) -> float | None:
    """The cap in work tokens, or None for no cap.

    Endpoints that are ready or degraded (their last word was good, it is only late) count in full. Those of
    which nothing is known neither add nor take away: the last cap holds, at most as far as they could carry
    it. Draining and unreachable ones count nothing.
    """
    if work_tokens_per_endpoint is None:
        return None
    ready = unknown = 0
    for state in states:
        ready += state in ("ready", "degraded")
        unknown += state == "unknown"
    known_cap = work_tokens_per_endpoint * ready
    if unknown == 0 or last_cap_work_tokens is None:
        return known_cap
    return max(known_cap, min(last_cap_work_tokens, known_cap + work_tokens_per_endpoint * unknown))
