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


def changes_at_ms(at_ms: float, now_ms: float, valid_for_ms: float) -> float:
    """When age alone makes another quality of a figure of then; infinity where it is unknown already."""
    turns_ms = (at_ms + valid_for_ms + 1, at_ms + 2 * valid_for_ms + 1)
    return next((turn_ms for turn_ms in turns_ms if turn_ms > now_ms), float("inf"))
