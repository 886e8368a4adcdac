"""Regions and the links between them: delay, bandwidth and the price of egress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

BYTES_PER_TOKEN = 4.0
"""Of text; what the wire adds is left out."""


@dataclass(frozen=True, slots=True)
class Link:
    """From one region to another. ``bandwidth_mbps`` is of one request's stream, in megabits a second."""

    rtt_ms: float = 0.0
    bandwidth_mbps: float = inf
    egress_price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        if (
            not 0 <= self.rtt_ms < inf
            or not self.bandwidth_mbps > 0
            or not 0 <= self.egress_price_per_gb < inf
        ):
            raise ValueError(
                f"A link needs an RTT >= 0 ms, a bandwidth above 0 and a price >= 0, not {self.rtt_ms} ms, "
                f"{self.bandwidth_mbps} Mbit/s and {self.egress_price_per_gb}."
            )

    def one_way_ms(self, tokens: float) -> float:
        """Time until so many tokens of text are at the other end."""
        return 0.5 * self.rtt_ms + tokens * BYTES_PER_TOKEN * 8e-3 / self.bandwidth_mbps

    def price(self, tokens: float) -> float:
        """What sending so many tokens of text costs."""
        return tokens * BYTES_PER_TOKEN * 1e-9 * self.egress_price_per_gb


LOCAL = Link()


@dataclass(frozen=True)
class Network:
    """Region names in order, and links by ``(from, to)``; a pair given one way holds both ways.

    Within a region there is no delay (but a pair ``(r, r)`` may be given). ``residency`` maps a residency
    class to the regions that may serve it; a class that isn't named there fits nowhere. ValueError for
    unknown names or a pair without a link.
    """

    regions: Sequence[str]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    residency: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = set(self.regions)
        if not names or len(names) != len(self.regions):
            raise ValueError(f"A network needs regions with different names, not {list(self.regions)}.")
        used = {name for pair in self.links for name in pair} | {
            n for r in self.residency.values() for n in r
        }
        if used - names:
            raise ValueError(f"There is no region {sorted(used - names)[0]!r}; there are {sorted(names)}.")
        for one in self.regions:
            for other in self.regions:
                if one != other and not {(one, other), (other, one)} & self.links.keys():
                    raise ValueError(f"There is no link between the regions {one!r} and {other!r}.")

    def index(self, region: str) -> int:
        """The position of a region; ValueError where there is none of this name."""
        try:
            return list(self.regions).index(region)
        except ValueError:
            raise ValueError(f"There is no region {region!r}; there are {list(self.regions)}.") from None

    def matrix(self) -> list[list[Link]]:
        """Links by position, ``[from][to]``."""
        return [
            [
                self.links.get((one, other))
                or self.links.get((other, one))
                or LOCAL  # only where one is the other: all else was checked
                for other in self.regions
            ]
            for one in self.regions
        ]

    def allowed(self, residency: str | None) -> frozenset[int]:
        """Positions of the regions that may serve a residency class (None: all)."""
        if residency is None:
            return frozenset(range(len(self.regions)))
        return frozenset(self.index(name) for name in self.residency.get(residency, ()))


def single_region(name: str = "a", residency: Sequence[str] = ()) -> Network:
    """One region that serves everyone, the given residency classes too."""
    return Network([name], residency={residence: [name] for residence in residency})
