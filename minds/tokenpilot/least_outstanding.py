"""The instance with the least outstanding requests, as far as one router can know it.

A reading is always somewhat old. It is corrected by what this router itself has sent and seen end since the
sample; as it ages beyond its validity its weight fades to the mean of the instances that are known. So a
missing reading is neither "idle" (all would pile on it) nor "full" (it would be halted).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from minds.seeds import pick

NEAR_TIE_REQUESTS = 0.5
NEAR_TIE_RATIO = 0.1
"""Estimates within half a request plus a tenth of the least are as good as equal among many routers."""
_KEPT_ENDS = 4096


def trust_of(age_ms: float, valid_for_ms: float) -> float:
    """The weight of a reading: 1 while fresh, falling in a line to 0 at twice its validity."""
    if age_ms <= valid_for_ms:
        return 1.0
    return max(0.0, 2.0 - age_ms / valid_for_ms) if valid_for_ms > 0 else 0.0


@dataclass(slots=True, eq=False)
class Dispatch:
    """One own request at an instance; give it back with ``InstanceLoad.finished``."""

    load: InstanceLoad
    at_ms: float
    done: bool = False


class InstanceLoad:
    """What one router has at one boot of an instance, counted apart from what the instance says.

    A new boot gets a new object: whatever ends later of the old boot is settled with the old object, so
    counts never go negative and never leak, also where an endpoint flaps.
    """

    __slots__ = (
        "_dispatched_at",
        "_ended",
        "_ended_since",
        "_sent_since",
        "boot",
        "instance",
        "outstanding",
        "region",
        "sampled_at_ms",
    )

    def __init__(self, instance: str, boot: str, region: str) -> None:
        self.instance = instance
        self.boot = boot
        self.region = region
        self.outstanding: float | None = None
        self.sampled_at_ms: float | None = None
        self._dispatched_at: dict[Dispatch, float] = {}
        self._ended: deque[tuple[float, float]] = deque(maxlen=_KEPT_ENDS)
        self._sent_since = 0
        self._ended_since = 0

    @property
    def in_flight(self) -> int:
        """Own requests that have not ended."""
        return len(self._dispatched_at)

    def observe(self, outstanding: float | None, sampled_at_ms: float | None, now_ms: float) -> None:
        """Take the instance's own count of running plus waiting requests; None where it said nothing.

        A sample from a clock ahead of ours counts as made now; an older sample than the last is ignored.
        """
        if sampled_at_ms is not None:
            sampled_at_ms = min(sampled_at_ms, now_ms)
        if outstanding is None or sampled_at_ms is None:
            self.outstanding = self.sampled_at_ms = None
            self._ended.clear()
            self._sent_since, self._ended_since = len(self._dispatched_at), 0
            return
        if self.sampled_at_ms is not None and sampled_at_ms < self.sampled_at_ms:
            return
        self.outstanding, self.sampled_at_ms = outstanding, sampled_at_ms
        while self._ended and self._ended[0][1] <= sampled_at_ms:
            self._ended.popleft()
        self._sent_since = sum(1 for at_ms in self._dispatched_at.values() if at_ms > sampled_at_ms)
        self._ended_since = sum(1 for at_ms, _ in self._ended if at_ms <= sampled_at_ms)

    def dispatched(self, now_ms: float) -> Dispatch:
        """A request goes out to the instance."""
        dispatch = Dispatch(self, now_ms)
        self._dispatched_at[dispatch] = now_ms
        self._sent_since += self._unseen(now_ms)
        return dispatch

    def finished(self, dispatch: Dispatch, now_ms: float) -> None:
        """It ended, however it did. A second call changes nothing."""
        if dispatch.done:
            return
        dispatch.done = True
        self._dispatched_at.pop(dispatch, None)
        if self._unseen(dispatch.at_ms):
            self._sent_since -= 1
        elif self._unseen(now_ms):
            self._ended_since += 1
        if self.sampled_at_ms is not None:
            self._ended.append((dispatch.at_ms, now_ms))

    def since_sample(self) -> tuple[int, int]:
        """``(sent, ended)``: own requests in flight that the sample can't have seen, and those that it saw
        but that have ended since."""
        return self._sent_since, self._ended_since

    def _unseen(self, at_ms: float) -> bool:
        """Whether the sample can't have seen what happened then."""
        return self.sampled_at_ms is None or at_ms > self.sampled_at_ms


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate as the mind sees it. ``reading`` is running plus waiting, ``trust`` its weight (0-1)."""

    instance: str
    region: str
    reading: float | None
    trust: float
    own_in_flight: int
    own_sent_since: int
    own_ended_since: int


def standing_of(load: InstanceLoad, trust: float) -> Standing:
    """The candidate of this load now; an instance without a reading has no trust."""
    sent, ended = load.since_sample()
    reading = load.outstanding
    return Standing(
        load.instance,
        load.region,
        reading,
        0.0 if reading is None else trust,
        load.in_flight,
        sent,
        ended,
    )


def estimates(standings: Sequence[Standing]) -> list[float]:
    """Outstanding requests of each candidate: corrected, faded to neutral by age, at least what is our own.

    Neutral is the mean of the corrected readings weighted by trust; where nothing is known it is the own
    count, which is then all there is.
    """
    corrected = [
        None
        if standing.reading is None or standing.trust <= 0
        else max(0.0, standing.reading + standing.own_sent_since - standing.own_ended_since)
        for standing in standings
    ]
    weights = sum(s.trust for s, value in zip(standings, corrected, strict=True) if value is not None)
    neutral = None
    if weights > 0:
        known = zip(standings, corrected, strict=True)
        neutral = sum(s.trust * value for s, value in known if value is not None) / weights
    found = []
    for standing, value in zip(standings, corrected, strict=True):
        own = float(standing.own_in_flight)
        if neutral is None:
            found.append(own)
        else:
            faded = neutral if value is None else standing.trust * value + (1.0 - standing.trust) * neutral
            found.append(max(own, faded))
    return found


def near_least(values: Sequence[float], spread: float = 1.0) -> list[int]:
    """The indices of all values that are as good as the least.

    The band is half a request plus a tenth of the least, times ``spread`` (0-1): at 0, equals only.
    """
    least = min(values)
    bound = least + spread * (least * NEAR_TIE_RATIO + NEAR_TIE_REQUESTS)
    return [index for index, value in enumerate(values) if value <= bound]


def spread_of(values: Sequence[float], standings: Sequence[Standing]) -> float:
    """How much a router has to spread (0-1): others' outstanding requests for each of its own, at most 1.

    Only others' requests come and go unseen since the samples, and only where there are other routers does
    one view make many choose alike; with equal routers the ratio is their number less one. A router alone
    has none of it and chooses the least exactly. Where it has nothing outstanding it can't tell: 1.
    """
    own = sum(standing.own_in_flight for standing in standings)
    return min(1.0, max(0.0, sum(values) - own) / own) if own > 0 else 1.0


def choose(values: Sequence[float], seed: int, standings: Sequence[Standing] | None = None) -> int:
    """The index of the least estimate; near-ties are broken by the seed, so that routers spread.

    How near is near depends on how much there is to spread (:func:`spread_of`); without ``standings`` (the
    candidates of the values, in the same order) it is taken to be all.

    Raises ValueError where there is no candidate.
    """
    if not values:
        raise ValueError("There is no instance to choose from; filter and refuse before choosing.")
    ties = near_least(values, 1.0 if standings is None else spread_of(values, standings))
    return ties[pick(seed, len(ties), salt=1)]
