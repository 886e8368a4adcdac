"""Service classes of the standard workload: shares, agreed service levels, client patience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassProfile:
    """What one service class promises and how long its clients wait.

    All times are milliseconds of workload time. The service levels and `deadline_ms`, which bounds the whole
    intent, count from the start of its first attempt. `client_timeout_ms` bounds the wait for the *first
    token* of each attempt anew: a client that gives up and comes again waits as long once more.
    `share` is the class's share of requests where the workload itself names no class.
    """

    name: str
    share: float
    ttft_slo_ms: float
    tpot_slo_ms: float
    client_timeout_ms: float
    deadline_ms: float


# The three classes of the SLOMax experiment (docs/design.md, "The minds"); their lengths follow the Azure
# conversation trace, the Azure code trace and Vidur's arXiv summarisation set.
DEFAULT_CLASSES: tuple[ClassProfile, ...] = (
    ClassProfile("interactive", 0.5, 2_000.0, 60.0, 8_000.0, 60_000.0),
    ClassProfile("long", 0.3, 4_000.0, 80.0, 12_000.0, 60_000.0),
    ClassProfile("batch", 0.2, 30_000.0, 200.0, 60_000.0, 120_000.0),
)


def normalised_shares(shares: Sequence[float], what: str) -> tuple[float, ...]:
    """Scale non-negative shares to the sum 1; ValueError (one sentence naming `what`) where impossible."""
    total = sum(shares)
    if any(share < 0 for share in shares) or not 0 < total < float("inf"):
        raise ValueError(f"The {what} must be non-negative with a positive sum, not {list(shares)}.")
    return tuple(share / total for share in shares)
