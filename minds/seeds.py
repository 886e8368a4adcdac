"""Randomness for pure code: a seed in, a number out; the same on every machine and in every replay."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): 64 well-mixed bits of an integer."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def pick(seed: int, count: int, salt: int = 0) -> int:
    """An index below ``count``, uniform over seeds; ``salt`` tells several draws of one decision apart."""
    return mix64(seed ^ mix64(salt)) % count


def unit(seed: int, salt: int = 0) -> float:
    """A number in [0, 1), uniform over seeds."""
    return (mix64(seed ^ mix64(salt)) >> 11) / float(1 << 53)
