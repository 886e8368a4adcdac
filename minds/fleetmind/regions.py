"""Which region first: the least outstanding requests per ready endpoint, the entry region at near-ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minds.seeds import pick
from minds.tokenpilot.least_outstanding import near_least


def region_loads(regions: Sequence[str], outstanding: Sequence[float]) -> dict[str, float]:
    """Outstanding requests per ready endpoint; the arguments run in parallel, one entry an endpoint."""
    sums: dict[str, tuple[float, int]] = {}
    for region, requests in zip(regions, outstanding, strict=True):
        total, count = sums.get(region, (0.0, 0))
        sums[region] = (total + requests, count + 1)
    return {region: total / count for region, (total, count) in sums.items()}


def order_regions(loads: Mapping[str, float], entry_region: str, seed: int) -> list[str]:
    """All regions, the one to try first in front.

    Among those as good as the least loaded it is the entry region, else one picked by the seed (so that
    routers with the same view don't all choose the same); the rest follow by load.
    """
    if not loads:
        return []
    names = sorted(loads)
    ties = [names[index] for index in near_least([loads[name] for name in names])]
    first = entry_region if entry_region in ties else ties[pick(seed, len(ties), salt=2)]
    return [first, *sorted((name for name in names if name != first), key=lambda name: loads[name])]
