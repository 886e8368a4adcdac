"""The three audits: one request's story, goodput, and residency. Read-only, through the HTTP endpoint."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sinks.query_client import QueryClient

GoodputBy = Literal["all", "class", "region", "tenant"]
MAX_SINCE_S = 90 * 86_400
POLICY_GRACE_MS = 5_000
"""A router may act on a policy this long after it was replaced."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SINCE = re.compile(r"^(\d+(?:\.\d+)?)([smhd])$")


class AuditError(ValueError):
    """The audit can't be made; the message is a sentence."""


def parse_since(text: str) -> int:
    """``90s``, ``15m``, ``2h`` or ``1d`` as seconds. Raises AuditError."""
    match = _SINCE.match(text.strip())
    seconds = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 0 < seconds <= MAX_SINCE_S:
        raise AuditError(f"{text!r} is not a time span like 90s, 15m, 2h or 7d (at most 90d).")
    return seconds


@dataclass(frozen=True)
class IntentStory:
    """All that the store knows of one intent. ``summary`` is None while no outcome closed it."""

    intent_id: str
    tenant: str
    summary: dict[str, Any] | None
    decisions: list[dict[str, Any]]
    outcomes: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    """Dead letters of the request topics in the intent's time; whose they are is unknown."""

    @property
    def attempts(self) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """For each decision id, in order of time: its decisions (several: logged twice) and outcomes."""
        ids = dict.fromkeys(row["decision_id"] for row in [*self.decisions, *self.outcomes])
        return [
            (
                [row for row in self.decisions if row["decision_id"] == key],
                [row for row in self.outcomes if row["decision_id"] == key],
            )
            for key in ids
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``; the decisions' inputs as objects."""
        return asdict(self)


async def request_story(client: QueryClient, wanted: str) -> list[IntentStory]:
    """The stories of the intents that a decision or intent id means (several tenants may use one id).

    Raises AuditError where nothing of this id is stored, QueryError where the store can't be asked.
    """
    found = await client.run("request_intents", id=wanted)
    if not found:
        raise AuditError(
            f"Nothing is stored of {wanted!r}: no decision or outcome has it as decision or intent id."
        )
    return [await _story(client, row["intent_id"], row["tenant"]) for row in found]


async def _story(client: QueryClient, intent: str, tenant: str) -> IntentStory:
    decisions = await client.run("request_decisions", intent=intent, tenant=tenant)
    outcomes = await client.run("request_outcomes", intent=intent, tenant=tenant)
    summary = await client.run("request_summary", intent=intent, tenant=tenant)
    for row in decisions:
        row["input"] = _parsed(row.get("input"))
    times = [row["at_ms"] for row in [*decisions, *outcomes]]
    starts = [row["intent_started_at_ms"] for row in [*decisions, *outcomes]]
    dead = await client.run("request_dead", from_ms=min(starts), upto_ms=max(times) + 10_000)
    return IntentStory(intent, tenant, summary[0] if summary else None, decisions, outcomes, dead)


def _parsed(text: str | None) -> Any:
    return json.loads(text) if text else None


@dataclass(frozen=True)
class Goodput:
    """Goodput over the last ``since_s`` seconds, a row a group; token figures are None where unmeasured."""

    since_s: int
    by: GoodputBy
    groups: list[dict[str, Any]]
    total: dict[str, Any] | None
    """None where no intent began in this time."""


async def goodput(client: QueryClient, *, since_s: int, by: GoodputBy = "class") -> Goodput:
    """Offered, ok and within-level intents, tokens, and percentiles. Raises QueryError."""
    total = await client.run("goodput", since=since_s, by="all")
    groups = total if by == "all" else await client.run("goodput", since=since_s, by=by)
    return Goodput(since_s, by, groups, total[0] if total else None)


@dataclass(frozen=True)
class ResidencyViolation:
    """A decision that sent a request where the policy did not allow it."""

    decision_id: str
    intent_id: str
    tenant: str
    at_ms: int
    region: str
    residency: str
    allowed_regions: tuple[str, ...]


@dataclass(frozen=True)
class ResidencyAudit:
    """``checked`` dispatched decisions, ``restricted`` of them under a residency; at most 1000 examples."""

    since_s: int
    checked: int
    restricted: int
    violations: int
    examples: tuple[ResidencyViolation, ...]


async def residency(
    client: QueryClient, *, since_s: int = MAX_SINCE_S, grace_ms: int = POLICY_GRACE_MS
) -> ResidencyAudit:
    """Every dispatched decision against the allowed regions as logged at its time. Raises QueryError."""
    (row,) = await client.run("residency", since=since_s, grace_ms=grace_ms)
    examples = tuple(_violation(item) for item in row["examples"])
    return ResidencyAudit(
        since_s, int(row["checked"]), int(row["restricted"]), int(row["violations"]), examples
    )


def _violation(item: Any) -> ResidencyViolation:
    """From a tuple in JSON: an array or, with named elements, an object in order."""
    values = list(item.values()) if isinstance(item, dict) else list(item)
    decision, intent, tenant, at_ms, region, wanted, allowed = values
    return ResidencyViolation(decision, intent, tenant, int(at_ms), region, wanted, tuple(allowed))
