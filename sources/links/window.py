"""What probes say of a link: round trip and loss over a window. Pure: ``now_ms`` is an argument.

The round trip is the least of a router's last few: what lies above it is the router's own doing (a busy event
loop, a pause), not the network's. A router that no probe reaches while another one of its region answers says
something of itself and nothing of the link, so it is left out of the loss.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from schemas.network import LinkProbe
from schemas.readings import UNKNOWN, Reading
from sources.links.config import LinkConfig

WINDOW = 20
"""Attempts of a router over which loss is counted."""
LEAST_ATTEMPTS = 5
"""Fewer say nothing of a ratio: loss is unknown."""
_LAST_ROUND_TRIPS = 5
_FRESH_INTERVALS = 2.5
_STALE_INTERVALS = 20.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One probe. ``answered`` without ``rtt_ms``: it had to connect first, which takes more round trips."""

    at_ms: int
    answered: bool
    rtt_ms: float | None = None


@dataclass(slots=True)
class _Router:
    attempts: deque[Attempt] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def rtt(self) -> tuple[float, int] | None:
        """The least of the last round trips, and when the newest of them was."""
        timed = [(one.rtt_ms, one.at_ms) for one in self.attempts if one.rtt_ms is not None]
        recent = timed[-_LAST_ROUND_TRIPS:]
        return (min(rtt for rtt, _ in recent), recent[-1][1]) if recent else None

    @property
    def heard(self) -> bool:
        return any(one.answered for one in self.attempts)


@dataclass(slots=True)
class LinkWindow:
    """One link's routers and their last attempts."""

    config: LinkConfig
    _routers: dict[str, _Router] = field(default_factory=dict)

    def note(self, url: str, attempt: Attempt) -> None:
        """Account for an attempt."""
        self._routers.setdefault(url, _Router()).attempts.append(attempt)

    def keep(self, urls: frozenset[str]) -> None:
        """Forget routers that are not probed any more."""
        self._routers = {url: router for url, router in self._routers.items() if url in urls}

    def probe(self, now_ms: int) -> LinkProbe:
        """The link as it is known now."""
        bandwidth = self.config.bandwidth_mbit_per_s
        return LinkProbe(
            from_region=self.config.from_region,
            to_region=self.config.to_region,
            at_ms=now_ms,
            rtt_ms=self._rtt(now_ms),
            loss_ratio=self._loss(now_ms),
            bandwidth_mbit_per_s=UNKNOWN
            if bandwidth is None
            else Reading(value=bandwidth, quality="fresh", age_ms=0.0),
            egress_usd_per_gib=self.config.egress_usd_per_gib,
            valid_for_ms=_FRESH_INTERVALS * self._interval_ms,
        )

    @property
    def _interval_ms(self) -> float:
        return self.config.interval_ms + self.config.timeout_s * 1000

    def _rtt(self, now_ms: int) -> Reading:
        readings = [
            self._aged(rtt[0], now_ms - rtt[1])
            for router in self._routers.values()
            if (rtt := router.rtt()) is not None
        ]
        for quality in ("fresh", "stale"):
            if usable := [one for one in readings if one.quality == quality]:
                return min(usable, key=lambda one: one.value or 0.0)
        return UNKNOWN

    def _loss(self, now_ms: int) -> Reading:
        routers = [router for router in self._routers.values() if router.attempts]
        heard = [router for router in routers if router.heard] or routers
        attempts = [one for router in heard for one in router.attempts]
        if len(attempts) < LEAST_ATTEMPTS:
            return UNKNOWN
        lost = sum(not one.answered for one in attempts)
        return self._aged(lost / len(attempts), now_ms - max(one.at_ms for one in attempts))

    def _aged(self, value: float, age_ms: float) -> Reading:
        """A value of this age; ages count in intervals of the probes, timeouts included."""
        interval_ms = self._interval_ms
        age_ms = max(0.0, age_ms)
        if age_ms > _STALE_INTERVALS * interval_ms:
            return UNKNOWN
        quality = "fresh" if age_ms <= _FRESH_INTERVALS * interval_ms else "stale"
        return Reading.model_validate({"value": value, "quality": quality, "age_ms": age_ms})
