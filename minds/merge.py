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
from typing import Any, Generic, Literal, NamedTuple, TypeVar

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


class Interval(NamedTuple):
    """Whose partials: a source partition's offsets ``[base, upto)``, as one generation cut them."""

    source: str
    generation: int
    base: int
    upto: int


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


def apply_in_turn(
    state: Merged[D, T],
    offset: int,
    newest: Interval,
    before: D | None,
    delta: D,
    add: Callable[[T, D], None],
) -> None:
    """What ``apply_rollup`` comes to for several partials of one source, at once, where each began no earlier
    than the last ended and none was of a lower generation.

    ``before`` is what the partials before the newest hold together, None for none; ``delta`` is the newest's,
    and ``offset`` that of its rollup.
    """
    held = state.open.get(newest.source)
    if held is not None:
        add(state.closed, held.delta)
    if before is not None:
        add(state.closed, before)
    state.open[newest.source] = Open(newest.generation, newest.base, newest.upto, delta)
    state.applied = max(state.applied, offset)


class SourceTurns:
    """The newest interval of each source that any key of a partition has taken: what follows it replaces
    nothing, whatever its keys. Without it each key would have to be asked."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, str], tuple[int, int, int]] = {}

    def note(self, partition: int, interval: Interval | Partial[Any]) -> None:
        """A key took this interval."""
        self._note(partition, interval.source, interval.generation, interval.base, interval.upto)

    def learn(self, partition: int, state: Merged[Any, Any]) -> None:
        """A key came with what it had taken."""
        for source, held in state.open.items():
            self._note(partition, source, held.generation, held.base, held.upto)

    def _note(self, partition: int, source: str, generation: int, base: int, upto: int) -> None:
        known = self._newest.get((partition, source))
        if known is not None:
            generation, upto = max(generation, known[0]), max(upto, known[2])
            base = max(base, known[1])
        self._newest[partition, source] = (generation, base, upto)

    def of(self, partition: int, interval: Interval) -> Literal["next", "same", "other"]:
        """``next``: it follows all that was taken. ``same``: it is the newest interval, of which some keys
        may have taken their part. ``other``: it may replace something, or be a zombie's."""
        known = self._newest.get((partition, interval.source))
        if known is None:
            return "next"
        if interval.generation >= known[0] and interval.base >= known[2]:
            return "next"
        return "same" if (interval.generation, interval.base, interval.upto) == known else "other"
