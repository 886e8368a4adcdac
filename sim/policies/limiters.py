"""Limits on concurrency that follow a measured time, and throttling at the client; who is over is refused.

Round-trip times of LLM requests follow their output lengths, so the limiters here see the time per output
token instead (and AIMD the service level itself). The lowest ones seen are forgotten after a while, as the
libraries do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from math import ceil, sqrt
from random import Random

from sim.des.policy import ADMIT, OutcomeView, Refusal, RequestView, Verdict
from sim.des.views import FleetView
from sim.policies.queues import Entering, routable

WINDOW = 64
"""Ends of requests between two changes of a limit."""


class Limiter(ABC):
    """A limit on requests in flight for each instance; over it, a refusal at once."""

    tick_ms: float | None = None

    def __init__(self, initial: float, least: float, most: float, routers: float) -> None:
        self.limit = initial
        self._least, self._most = least, most
        self._routers = routers
        self._in_flight = 0
        self._instances = 1
        self._samples: list[float] = []

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """Below the limit it enters."""
        self._instances = max(1, routable(fleet))
        if self._in_flight >= self.limit * self._instances / self._routers:
            return Refusal("over_limit")
        self._in_flight += 1
        return ADMIT

    def pump(self, now_ms: float, fleet: FleetView) -> Sequence[Entering]:
        """Nobody is held."""
        return ()

    def gone(self, now_ms: float, request: RequestView) -> None:  # noqa: B027 - not for others to define
        """Nobody is held."""

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """A sample; after a window of them the limit changes."""
        used = self._in_flight / self._instances * self._routers
        self._in_flight -= 1
        sample = self.sample(request, outcome)
        if sample is None:
            return
        self._samples.append(sample)
        if len(self._samples) >= WINDOW:
            mean = sum(self._samples) / len(self._samples)
            self._samples.clear()
            self.limit = min(self._most, max(self._least, self.changed(mean, used)))

    def sample(self, request: RequestView, outcome: OutcomeView) -> float | None:
        """Time per output token in ms of what ended well; None for all else."""
        return outcome.tpot_ms if outcome.end == "ok" else None

    @abstractmethod
    def changed(self, mean: float, used: float) -> float:
        """The next limit, from a window's mean and the requests in flight for each instance."""


class Gradient2(Limiter):
    """Netflix Gradient2: ``g = clip(1.5*long/short, .5, 1); L <- .8L + .2(gL + 4)``; no growth below L/2."""

    def __init__(self, tolerance: float = 1.5, headroom: float = 4.0, routers: float = 1.0) -> None:
        super().__init__(64.0, 4.0, 256.0, routers)
        self._tolerance, self._headroom = tolerance, headroom
        self._long: float | None = None

    def changed(self, mean: float, used: float) -> float:
        """By the ratio of the long to the short mean."""
        self._long = mean if self._long is None else self._long + 0.02 * (mean - self._long)
        if self._long > 2.0 * mean:
            self._long *= 0.95
        gradient = min(1.0, max(0.5, self._tolerance * self._long / mean))
        following = 0.8 * self.limit + 0.2 * (gradient * self.limit + self._headroom)
        return min(following, self.limit) if used < self.limit / 2.0 else following


class Vegas(Limiter):
    """TCP Vegas on time per token: ``q = ceil(L*(1 - rtt0/rtt))``; up below ``low``, down above ``high``."""

    def __init__(self, low: float = 3.0, high: float = 6.0, routers: float = 1.0) -> None:
        super().__init__(64.0, 4.0, 256.0, routers)
        self._low, self._high = min(low, high), max(low, high)
        self._least_ms: float | None = None

    def changed(self, mean: float, used: float) -> float:
        """By the queue that the ratio implies."""
        if self._least_ms is None or mean < self._least_ms:
            self._least_ms = mean
        self._least_ms *= 1.001
        queue = ceil(self.limit * (1.0 - self._least_ms / mean))
        if queue < self._low and used >= self.limit / 2.0:
            return self.limit + 2.0
        return self.limit - 2.0 if queue > self._high else self.limit


class EnvoyAdaptive(Limiter):
    """Envoy's adaptive concurrency: ``L <- L*(minRTT*(1 + buffer))/sampleRTT + sqrt(L)``."""

    def __init__(self, buffer: float = 0.25, routers: float = 1.0) -> None:
        super().__init__(64.0, 3.0, 256.0, routers)
        self._buffer = buffer
        self._least_ms: float | None = None

    def changed(self, mean: float, used: float) -> float:
        """By the gradient; it is clipped to 0.5-2 as in Envoy."""
        if self._least_ms is None or mean < self._least_ms:
            self._least_ms = mean
        self._least_ms *= 1.001
        gradient = min(2.0, max(0.5, self._least_ms * (1.0 + self._buffer) / mean))
        return self.limit * gradient + sqrt(self.limit)


class NaiveAimd(Limiter):
    """One up after a window in which nearly all met their level, a cut after any other."""

    def __init__(
        self, cut: float = 0.9, target: float = 0.95, step: float = 2.0, routers: float = 1.0
    ) -> None:
        super().__init__(64.0, 4.0, 256.0, routers)
        self._cut, self._target, self._step = cut, target, step

    def sample(self, request: RequestView, outcome: OutcomeView) -> float | None:
        """1 where the service level was met, else 0; cancelled ones say nothing."""
        if outcome.end == "cancelled":
            return None
        good = (
            outcome.end == "ok"
            and outcome.ttft_ms is not None
            and outcome.started_ms + outcome.ttft_ms <= request.first_attempt_ms + request.ttft_slo_ms
            and (outcome.tpot_ms is None or outcome.tpot_ms <= request.tpot_slo_ms)
        )
        return 1.0 if good else 0.0

    def changed(self, mean: float, used: float) -> float:
        """By the share of good ones."""
        if mean < self._target:
            return self.limit * self._cut
        return self.limit + self._step if used >= self.limit / 2.0 else self.limit


class ClientThrottling:
    """Google SRE: refuse with ``p = max(0, (requests - k*accepts)/(requests + 1))`` over two minutes.

    An attempt counts as accepted when it ended well.
    """

    tick_ms: float | None = None

    def __init__(self, k: float = 2.0, window_s: float = 120.0, routers: float = 1.0) -> None:
        self._k = k
        self._window_ms = window_s * 1_000.0
        self._requests: deque[float] = deque()
        self._accepts: deque[float] = deque()
        self._rng = Random("client throttling")

    def admit(self, now_ms: float, request: RequestView, fleet: FleetView) -> Verdict:
        """By chance."""
        for times in (self._requests, self._accepts):
            while times and times[0] < now_ms - self._window_ms:
                times.popleft()
        # Requests in flight are neither accepted nor refused yet, so only ended ones are counted.
        requests, accepts = len(self._requests), len(self._accepts)
        if self._rng.random() < max(0.0, (requests - self._k * accepts) / (requests + 1.0)):
            self._requests.append(now_ms)
            return Refusal("throttled")
        return ADMIT

    def pump(self, now_ms: float, fleet: FleetView) -> Sequence[Entering]:
        """Nobody is held."""
        return ()

    def gone(self, now_ms: float, request: RequestView) -> None:
        """Nobody is held."""

    def ended(self, now_ms: float, request: RequestView, outcome: OutcomeView) -> None:
        """Counts it."""
        self._requests.append(now_ms)
        if outcome.end in ("ok", "cancelled"):
            self._accepts.append(now_ms)
