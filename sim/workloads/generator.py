"""The built-in workload: published length distributions, modulated Poisson arrivals, multi-turn sessions.

It stands in for the public traces where none is at hand. Lengths follow published data (`lengths.py`);
classes, tenants, sessions and the modulation are synthesised from the seed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.workloads.classes import DEFAULT_CLASSES, ClassProfile, normalised_shares
from sim.workloads.lengths import LENGTHS, LengthProfile
from sim.workloads.traces import BLOCK_TOKENS, TraceRequest

COMMON_BLOCK = 0  # the first block of every prompt: a system prompt that all share, as in the Mooncake traces
MAX_REQUESTS = (
    5_000_000  # above this the numbers are a slip of the keyboard, and the plan would fill the memory
)

DEFAULT_TENANT_SHARES: Mapping[str, float] = {
    "tenant-a": 0.4,
    "tenant-b": 0.3,
    "tenant-c": 0.2,
    "tenant-d": 0.1,
}


@dataclass(frozen=True, slots=True)
class GeneratedRequest(TraceRequest):
    """A request of the generator: a TraceRequest with its class, tenant, session and turn (from 0)."""

    service_class: str = ""
    tenant: str = ""
    session: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class GeneratorShape:
    """Knobs of the generator.

    Each class's rate alternates between (1 + modulation) and (1 - modulation) times its mean every
    `modulation_period_ms`, with a phase of its own; the mean over the whole duration stays as asked.
    `mean_turns` is the mean length of a session by class (1: no sessions), `think_time_ms` the mean pause
    before a next turn.
    """

    lengths: Mapping[str, LengthProfile] = field(default_factory=lambda: LENGTHS)
    mean_turns: Mapping[str, float] = field(
        default_factory=lambda: {"interactive": 4.0, "long": 3.0, "batch": 1.0}
    )
    modulation: float = 0.5
    modulation_period_ms: float = 60_000.0
    think_time_ms: float = 10_000.0


def generate(
    *,
    rate_rps: float,
    duration_ms: float,
    seed: int,
    classes: Sequence[ClassProfile] = DEFAULT_CLASSES,
    tenant_shares: Mapping[str, float] = DEFAULT_TENANT_SHARES,
    shape: GeneratorShape | None = None,
) -> tuple[GeneratedRequest, ...]:
    """Requests of `duration_ms` at a mean of `rate_rps` requests/s, in order of arrival; the seed fixes all.

    A turn's prompt extends the one before it: it starts with the same blocks. Lengths within a session are
    draws of the class's distribution in ascending order, so the distribution over all requests stays the
    published one. `prefix_blocks` names the full blocks only. ValueError for impossible arguments.
    """
    shape = shape or GeneratorShape()
    _check(rate_rps, duration_ms, classes, shape)
    shares = normalised_shares([profile.share for profile in classes], "class shares")
    tenants = list(tenant_shares)
    weights = normalised_shares(list(tenant_shares.values()), "tenant shares")
    block_ids = itertools.count(COMMON_BLOCK + 1)
    requests: list[GeneratedRequest] = []
    for index, (profile, share) in enumerate(zip(classes, shares, strict=True)):
        # One stream of random numbers per class: changing one class leaves the others as they were.
        rng = np.random.default_rng([seed, index])
        arrivals_ms = _arrivals(rng, rate_rps * share, duration_ms, shape)
        sessions = _sessions(rng, arrivals_ms, shape.mean_turns.get(profile.name, 1.0), shape.think_time_ms)
        lengths = shape.lengths[profile.name]
        inputs = lengths.draw_inputs(rng, len(arrivals_ms))
        outputs = lengths.draw_outputs(rng, len(arrivals_ms))
        owners = rng.choice(len(tenants), size=len(sessions), p=weights)
        for number, (members, owner) in enumerate(zip(sessions, owners, strict=True)):
            prompts = np.sort(inputs[members])
            full = int(prompts[-1]) // BLOCK_TOKENS
            chain = (COMMON_BLOCK, *itertools.islice(block_ids, max(0, full - 1)))
            requests.extend(
                GeneratedRequest(
                    at_ms=float(arrivals_ms[member]),
                    input_tokens=int(prompt),
                    output_tokens=int(outputs[member]),
                    prefix_blocks=chain[: int(prompt) // BLOCK_TOKENS],
                    service_class=profile.name,
                    tenant=tenants[owner],
                    session=f"{profile.name}-{number}",
                    turn=turn,
                )
                for turn, (member, prompt) in enumerate(zip(members, prompts, strict=True))
            )
    requests.sort(key=lambda request: request.at_ms)
    return tuple(requests)


def _check(
    rate_rps: float, duration_ms: float, classes: Sequence[ClassProfile], shape: GeneratorShape
) -> None:
    if not 0 < rate_rps < float("inf"):
        raise ValueError(f"The rate must be a positive number of requests/s, not {rate_rps}.")
    if not 0 < duration_ms < float("inf"):
        raise ValueError(f"The duration must be a positive number of ms, not {duration_ms}.")
    if rate_rps * duration_ms / 1_000.0 > MAX_REQUESTS:
        raise ValueError(
            f"{rate_rps} requests/s for {duration_ms / 1_000.0} s is more than {MAX_REQUESTS} requests; "
            "lower the rate or the duration."
        )
    if not 0 <= shape.modulation <= 1 or not shape.modulation_period_ms > 0 or not shape.think_time_ms >= 0:
        raise ValueError(
            "The modulation must lie in 0..1, its period above 0 ms, the think time at 0 ms or above."
        )
    unknown = [profile.name for profile in classes if profile.name not in shape.lengths]
    if unknown:
        known = ", ".join(sorted(shape.lengths))
        raise ValueError(f"The generator has no lengths for class {unknown[0]!r}; it knows {known}.")


def _arrivals(
    rng: np.random.Generator, rate_rps: float, duration_ms: float, shape: GeneratorShape
) -> NDArray[np.float64]:
    """Arrival times (ms, ascending) of a Poisson process with a square-wave rate of mean `rate_rps`."""
    edges_ms = np.append(np.arange(0.0, duration_ms, shape.modulation_period_ms), duration_ms)
    signs = np.where((np.arange(len(edges_ms) - 1) + rng.integers(2)) % 2 == 0, 1.0, -1.0)
    volume = np.append(0.0, np.cumsum((1.0 + shape.modulation * signs) * np.diff(edges_ms)))
    if volume[-1] <= 0.0:  # fully modulated, and the only period is the quiet one
        volume = edges_ms
    count = rng.poisson(rate_rps * duration_ms / 1_000.0)
    # Given their number, arrivals are independent draws; the inverse of the cumulative rate places them.
    placed: NDArray[np.float64] = np.interp(np.sort(rng.random(count)) * volume[-1], volume, edges_ms)
    return placed


def _sessions(
    rng: np.random.Generator, arrivals_ms: NDArray[np.float64], mean_turns: float, think_time_ms: float
) -> list[list[int]]:
    """Group arrivals into sessions (lists of arrival indices); geometric length, exponential think time.

    An arrival continues the session that has waited longest for its next turn, else it opens a new one.
    """
    p_continue = 1.0 - 1.0 / max(1.0, mean_turns)
    continues = rng.random(len(arrivals_ms)) < p_continue
    pauses_ms = (
        rng.exponential(think_time_ms, len(arrivals_ms)) if think_time_ms > 0 else np.zeros(len(arrivals_ms))
    )
    sessions: defaultdict[int, list[int]] = defaultdict(list)
    waiting: list[tuple[float, int]] = []
    for index, at_ms in enumerate(arrivals_ms):
        session = heapq.heappop(waiting)[1] if waiting and waiting[0][0] <= at_ms else len(sessions)
        sessions[session].append(index)
        if continues[index]:
            heapq.heappush(waiting, (float(at_ms + pauses_ms[index]), session))
    return list(sessions.values())
