"""The hard filter: where a request may go at all. It fails closed, and every exclusion keeps its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minds.policy import CompiledPolicy, TenantRule

RESIDENCY_FORBIDS = "residency_forbids"
TENANT_NOT_ALLOWED = "tenant_not_allowed"
NO_READY_ENDPOINT = "no_ready_endpoint"


@dataclass(frozen=True, slots=True)
class Site:
    """One endpoint of a pool. ``not_ready`` says why it can't take work, or is None."""

    instance: str
    region: str
    not_ready: str | None = None


def excluded_by(site: Site, policy: CompiledPolicy, allowed: frozenset[str] | None) -> str | None:
    """Why a request may not go to this endpoint, or None. ``allowed`` are the residency's regions."""
    if allowed is not None and site.region not in allowed:
        return f"residency: {site.region} is not an allowed region"
    if (reason := policy.regions.stopped.get(site.region)) is not None:
        return f"operator, region, {reason}"
    if (reason := policy.instances.stopped.get(site.instance)) is not None:
        return f"operator, instance, {reason}"
    return site.not_ready


def narrow_to_pins(sites: Iterable[Site], policy: CompiledPolicy) -> dict[str, str]:
    """Of the eligible endpoints, those that a pin elsewhere excludes, with the reason.

    A pinned region or instance takes all of a pool's traffic for as long as it can take any.
    """
    eligible = list(sites)
    out: dict[str, str] = {}
    if any(site.region in policy.regions.pinned for site in eligible):
        out |= {
            s.instance: "operator: another region is pinned"
            for s in eligible
            if s.region not in policy.regions.pinned
        }
    if any(site.instance in policy.instances.pinned for site in eligible):
        out |= {
            s.instance: "operator: another instance is pinned"
            for s in eligible
            if s.instance not in policy.instances.pinned
        }
    return out


def nothing_allowed(sites: Iterable[Site], allowed: frozenset[str] | None) -> str:
    """The rule of a refusal where no endpoint is left: the law's, or want of a ready endpoint."""
    if allowed is not None and not any(site.region in allowed for site in sites):
        return RESIDENCY_FORBIDS
    return NO_READY_ENDPOINT


def tenant_refusal(tenant: TenantRule, service_class: str, pool: str, policy: CompiledPolicy) -> str | None:
    """Why this tenant may not use this class or pool, as a sentence, or None."""
    if (reason := policy.tenant_hands.stopped.get(tenant.tenant)) is not None:
        return f"The tenant {tenant.tenant} is stopped by an operator ({reason})."
    if tenant.classes and service_class not in tenant.classes:
        return f"The tenant {tenant.tenant} may not use the class {service_class}."
    if tenant.pools and pool not in tenant.pools:
        return f"The tenant {tenant.tenant} may not use the pool {pool}."
    return None


def pool_of(model: str, ready_endpoints: Mapping[str, int]) -> str | None:
    """The pool that a request's model name means, or None where there is none.

    ``model@version`` means exactly that pool. A bare name means the newest version with ready endpoints,
    or the newest of all where none is ready. ``ready_endpoints`` maps each known pool to its count.
    """
    if model in ready_endpoints:
        return model
    versions = [pool for pool in ready_endpoints if pool.rpartition("@")[0] == model]
    if not versions:
        return None
    return max(versions, key=lambda pool: (ready_endpoints[pool] > 0, version_order(pool)))


def version_order(pool: str) -> list[tuple[int, int, str]]:
    """A sort key for a pool's version, in which v10 comes after v9."""
    version = pool.rpartition("@")[2]
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|\D+", version)
    ]
