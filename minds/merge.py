"""Combining exactly, without trusting delivery: the rule by which partials become totals.

Stage one folds the interval ``[base, upto)`` of a source partition's offsets into one partial a key, and
commits ``upto`` before it starts the next interval. After a crash the interval is cut again, at other
boundaries, by a combiner of a higher generation; a combiner that was thought dead may still write what it
held. Stage two keeps for each key a closed total and, for each source partition, one open partial:

- a lower generation is dropped: it is a zombie's;
- ``base >= open.upto``: the open partial's interval was committed, so close it, and open the new one;
- else the interval was cut again: the new one replaces the open one;
- a rollup at or below the last applied offset was delivered twice: skip it.

Why it is exact: a combiner starts at the committed offset and commits before it goes on, so all that is
uncommitted of a source is one interval a generation, starting at the committed offset. What a zombie adds to
a key that its successor has not touched, the successor meets later and replaces. It needs a new generation
after *every* break, a failed write included: a late copy of an older cut must always lose.
The model test in ``tests/minds/test_merge.py`` checks it, and that each simpler rule fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

D = TypeVar("D")
T = TypeVar("T")


class Open(msgspec.Struct, Generic[D], array_like=True):
    """The last partial of one source partition, which may still be replaced."""

    generation: int
    base: int
    upto: int
    delta: D


class Partial(msgspec.Struct, Generic[D], array_like=True, frozen=True):
    """What a rollup holds for one key from one source partition."""

    source: str
    generation: int
    base: int
    upto: int
    delta: D


class Merged(msgspec.Struct, Generic[D, T]):
    """The merge state of one key. ``applied`` is the offset of the last rollup that it took."""

    closed: T
    open: dict[str, Open[D]] = {}
    applied: int = -1


def apply_rollup(
    state: Merged[D, T], offset: int, partials: Iterable[Partial[D]], add: Callable[[T, D], None]
) -> bool:
    """Take what the rollup at ``offset`` says of this key; False where it had been taken before.

    ``add`` adds a delta to the closed total in place; it must not depend on order.
    """
    if offset <= state.applied:
        return False
    for partial in partials:
        held = state.open.get(partial.source)
        if held is not None:
            if partial.generation < held.generation:
                continue
            if partial.base >= held.upto:
                add(state.closed, held.delta)
        state.open[partial.source] = Open(partial.generation, partial.base, partial.upto, partial.delta)
    state.applied = offset
    return True
