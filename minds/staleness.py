"""How age turns a figure from fresh to stale to unknown."""

from __future__ import annotations

from typing import Literal

Quality = Literal["fresh", "stale", "unknown"]


def quality_of(age_ms: float, valid_for_ms: float) -> Quality:
    """Fresh up to ``valid_for_ms``, stale up to twice that, unknown beyond.

    A negative age (a writer's clock ahead of ours) counts as 0: the row's own order is by epoch and version.
    """
    if age_ms <= valid_for_ms:
        return "fresh"
    return "stale" if age_ms <= 2 * valid_for_ms else "unknown"
