"""Links between regions as the region table shows them: of each figure the newest that is known.

Several agents of a region may probe one link, and only some of them are told its bandwidth and price. So
figures are kept one by one with the time at which each was true; a join takes the later, and reading a probe
twice, or in another order, changes nothing. What nobody has said for long is unknown: a price too, since an
agent repeats it with each probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from minds.staleness import quality_of
from schemas.fastpath import struct_of
from schemas.readings import Reading
from schemas.tables import LinkReading

LINK_VALID_MS = 10_000.0
"""Of a probe that does not say how long it may be believed."""
LONGEST_VALID_MS = 300_000.0
"""However long a probe says: the rest of what a worker must read of the past when it starts."""
LOOK_BACK_MS = 2 * LONGEST_VALID_MS
"""Nothing older than this says anything now."""
FIGURES = ("rtt_ms", "loss_ratio", "bandwidth_mbit_per_s", "egress_usd_per_gib")

_MOST = {"loss_ratio": 1.0}
_Reading, _LinkReading = struct_of(Reading), struct_of(LinkReading)


class Figure(NamedTuple):
    """A figure of a link, ordered by when it was true."""

    true_at_ms: float
    value: float
    valid_for_ms: float

    def reading(self, now_ms: int) -> Any:
        """The figure as it may be trusted now, a struct of schemas.readings.Reading."""
        age_ms = max(0.0, now_ms - self.true_at_ms)
        quality = quality_of(age_ms, self.valid_for_ms)
        if quality == "unknown":
            return _Reading()
        return _Reading(value=self.value, quality=quality, age_ms=age_ms)


class Links:
    """The newest figures of all links. Memory: 0.7 kB a link. ``take`` costs 5 us, ``links_of`` 4 us a
    link."""

    def __init__(self) -> None:
        self._links: dict[str, dict[str, dict[str, Figure]]] = {}

    def take(self, probe: Any) -> str | None:
        """Take a schemas.network.LinkProbe (or its struct); a sentence about what in it can't be true."""
        if probe.from_region == probe.to_region:
            return f"A link leads from {probe.from_region} to itself."
        valid_for_ms = min(LONGEST_VALID_MS, probe.valid_for_ms or LINK_VALID_MS)
        told = {
            name: (reading.value, probe.at_ms - (reading.age_ms or 0.0))
            for name in FIGURES[:3]
            if (reading := getattr(probe, name)).value is not None and reading.quality != "unknown"
        }
        if probe.egress_usd_per_gib is not None:
            told["egress_usd_per_gib"] = (probe.egress_usd_per_gib, float(probe.at_ms))
        wrong = None
        figures = self._links.setdefault(probe.from_region, {}).setdefault(probe.to_region, {})
        for name, (value, true_at_ms) in told.items():
            if not 0.0 <= value <= _MOST.get(name, math.inf):
                wrong = f"{name} from {probe.from_region} to {probe.to_region} is {value:g}."
                continue
            figure = Figure(true_at_ms, value, valid_for_ms)
            held = figures.get(name)
            if held is None or figure > held:
                figures[name] = figure
        return wrong

    def links_of(self, region: str, others: Iterable[str], now_ms: int) -> list[Any]:
        """From ``region`` to each other region, by name: structs of schemas.tables.LinkReading.

        Listed are the regions of ``others`` (those that the registry knows) and all that a probe told of; of
        a link without any figure all is unknown.
        """
        links = self._links.get(region, {})
        return [
            _LinkReading(
                to_region=other,
                **{name: figure.reading(now_ms) for name, figure in links.get(other, {}).items()},
            )
            for other in sorted({*others, *links} - {region})
        ]

    def forget_old(self, now_ms: int) -> None:
        """Drop what says nothing any more; now and then is often enough."""
        for region, links in list(self._links.items()):
            for other, figures in list(links.items()):
                for name, figure in list(figures.items()):
                    if now_ms - figure.true_at_ms > LOOK_BACK_MS:
                        del figures[name]
                if not figures:
                    del links[other]
            if not links:
                del self._links[region]
