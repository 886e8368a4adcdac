"""The operators' policy, compiled for look-ups; and what in a policy contradicts itself."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.policy import PolicyRow, ServiceClass

DEFAULT_CLASS = "default"
PUBLIC_TENANT = "public"


@dataclass(frozen=True, slots=True)
class Level:
    """A service class as routers use it; times in milliseconds."""

    name: str
    ttft_slo_ms: float
    tpot_slo_ms: float
    deadline_ms: float


@dataclass(frozen=True, slots=True)
class TenantRule:
    """What a tenant may use; empty sets allow all. ``residency`` is forced where it is set."""

    tenant: str
    key_sha256: str
    classes: frozenset[str]
    pools: frozenset[str]
    residency: str | None


PUBLIC = TenantRule(PUBLIC_TENANT, "", frozenset(), frozenset(), None)


class _CapLike(Protocol):
    pool: str
    work_tokens_per_endpoint: float | None


@dataclass(frozen=True, slots=True)
class Hands:
    """Operators' hands on instances, regions or tenants: names to reasons."""

    pinned: dict[str, str]
    stopped: dict[str, str]


class CompiledPolicy:
    """Look-ups over one policy row (a pydantic row or a struct of the fast path); None is a fresh install."""

    def __init__(self, row: Any | None) -> None:
        self.classes: dict[str, Level] = {}
        for item in row.classes if row is not None else ():
            self.classes[item.name] = _level(item)
        if not self.classes:
            self.classes[DEFAULT_CLASS] = _level(ServiceClass(name=DEFAULT_CLASS))
        named = row.default_class if row is not None else None
        self.default_class: str = named if named in self.classes else next(iter(self.classes))
        if named is None and DEFAULT_CLASS in self.classes:
            self.default_class = DEFAULT_CLASS
        self._residencies = {
            item.name: frozenset(item.allowed_regions)
            for item in (row.residencies if row is not None else ())
        }
        self.tenants = tuple(
            TenantRule(t.tenant, t.key_sha256, frozenset(t.classes), frozenset(t.pools), t.residency)
            for t in (row.tenants if row is not None else ())
        )
        self._caps: dict[str, _CapLike] = {cap.pool: cap for cap in (row.caps if row is not None else ())}
        operations = row.operations if row is not None else ()
        self.instances = _hands(operations, "instance")
        self.regions = _hands(operations, "region")
        self.tenant_hands = _hands(operations, "tenant")
        self.admission_acts: bool = row is None or row.switches.slomax != "shadow"

    def allowed_regions(self, residency: str | None) -> frozenset[str] | None:
        """The regions of a residency class; None: any. An unknown class allows none (it fails closed)."""
        return None if residency is None else self._residencies.get(residency, frozenset())

    def knows_residency(self, residency: str) -> bool:
        """Whether this residency class is in the policy."""
        return residency in self._residencies

    def capped(self, pool: str) -> bool:
        """Whether work of this pool needs a lease. The pool's own cap goes before the one for ``*``."""
        cap = self._caps.get(pool) or self._caps.get("*")
        return cap is not None and cap.work_tokens_per_endpoint is not None

    def tenant_of(self, key: str | None) -> TenantRule | None:
        """The tenant of an API key; the public one where the policy has no tenants; None: unknown key.

        Every stored digest is compared in constant time, so timing says nothing about them.
        """
        if not self.tenants:
            return PUBLIC
        found = None
        digest = hashlib.sha256((key or "").encode("utf-8", "surrogateescape")).hexdigest()
        for tenant in self.tenants:
            if hmac.compare_digest(tenant.key_sha256, digest) and key:
                found = tenant
        return found


def problems_of(policy: PolicyRow) -> list[str]:
    """What contradicts itself in a policy, as sentences that name the field; empty where it is sound."""
    found = [
        *_doubles("classes", "class", (item.name for item in policy.classes)),
        *_doubles("residencies", "residency", (item.name for item in policy.residencies)),
        *_doubles("tenants", "tenant", (item.tenant for item in policy.tenants)),
        *_doubles("caps", "pool", (item.pool for item in policy.caps)),
    ]
    classes = {item.name for item in policy.classes}
    residencies = {item.name for item in policy.residencies}
    if policy.default_class is not None and policy.default_class not in classes:
        found.append(f"default_class: there is no class {policy.default_class!r} under classes.")
    total = sum(item.share for item in policy.classes)
    if policy.classes and not 0 < total <= 1.000001 and len(policy.classes) > 1:
        found.append(f"classes: the shares must sum to more than 0 and at most 1, not {total:g}.")
    for index, tenant in enumerate(policy.tenants):
        for name in tenant.classes:
            if name not in classes:
                found.append(f"tenants[{index}].classes: there is no class {name!r} under classes.")
        if tenant.residency is not None and tenant.residency not in residencies:
            found.append(f"tenants[{index}].residency: there is no residency {tenant.residency!r}.")
    return found


def _level(item: Any) -> Level:
    return Level(item.name, float(item.ttft_slo_ms), float(item.tpot_slo_ms), float(item.deadline_ms))


def _hands(operations: Iterable[Any], kind: str) -> Hands:
    mine = [item for item in operations if item.kind == kind]
    return Hands(
        pinned={item.name: item.reason for item in mine if item.action == "pin"},
        stopped={item.name: f"{item.action}: {item.reason}" for item in mine if item.action != "pin"},
    )


def _doubles(field: str, what: str, names: Iterable[str]) -> list[str]:
    return [f"{field}: {what} {name!r} is there twice." for name, n in Counter(names).items() if n > 1]
