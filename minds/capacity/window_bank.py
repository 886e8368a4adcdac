"""The counts of many keys' windows, side by side in arrays, kept by compiled code.

What ``Live`` reckons from one key's rings, for all keys that a rollup tells of at once: 0.1 us a key to add,
and as little when a window moves on. A lane is a key. It holds the counts of its last seconds and of its last
tens of seconds in two rings, each slot with its number, and the sums of the windows over them.

The rings reach as far back as the state's own, and ``AHEAD_S`` seconds ahead. What is further ahead (a clock
that runs fast) does not fit: the lane is marked, and its owner reads the key's state instead, until it fills
the lane anew. It is marked too where the worker's own clock was set back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from minds.windows import COARSE_MS, COARSE_SLOTS, COUNTS, FINE_MS, FINE_SLOTS, SPANS_MS, WIDTH, Cell

PLACES = len(SPANS_MS)
SLOTS_MS = tuple(FINE_MS if span // FINE_MS < FINE_SLOTS else COARSE_MS for span in SPANS_MS)
"""How long a slot of each window is."""
ALL_BOOTS = -1
"""In ``WindowBank.boot``: outcomes of every boot count."""
AHEAD_S = 15
"""How far events may be ahead of the worker's clock and still fit."""
_PER_WIDE = COARSE_MS // FINE_MS
_FINE, _WIDE = FINE_SLOTS + AHEAD_S + 1, COARSE_SLOTS + AHEAD_S // _PER_WIDE + 2
_SPANS = np.array([span // slot for span, slot in zip(SPANS_MS, SLOTS_MS, strict=True)], np.int64)
_IS_FINE = np.array([slot == FINE_MS for slot in SLOTS_MS])
_MOST_BOOTS = 100_000
_EMPTY = np.int64(-(2**62))


class _Lanes(NamedTuple):
    """An element, or a row, a lane. Slots carry their numbers as tags; ``last`` is the slot that the sums of
    a window reach up to, and ``ahead`` says that a lane lacks something."""

    fine: Any
    fine_tags: Any
    wide: Any
    wide_tags: Any
    sums: Any
    last: Any
    ahead: Any


def _lanes(room: int) -> _Lanes:
    """Lanes that hold nothing."""
    return _Lanes(
        fine=np.zeros((room, _FINE, WIDTH), np.int64),
        fine_tags=np.full((room, _FINE), _EMPTY, np.int64),
        wide=np.zeros((room, _WIDE, WIDTH), np.int64),
        wide_tags=np.full((room, _WIDE), _EMPTY, np.int64),
        sums=np.zeros((room, PLACES, WIDTH), np.int64),
        last=np.full((room, PLACES), _EMPTY, np.int64),
        ahead=np.zeros(room, np.bool_),
    )


@numba.njit(cache=True, nogil=True)
def _put(ring: Any, tags: Any, slot: Any, counts: Any) -> None:
    place = slot % len(tags)
    if tags[place] != slot:
        tags[place] = slot
        ring[place, :] = 0
    for column in range(WIDTH):
        ring[place, column] += counts[column]


@numba.njit(cache=True, nogil=True)
def _add(lanes: Any, lane: Any, slot: Any, is_fine: Any, counts: Any, now_s: Any) -> None:
    """Add the counts of a slot (fine or wide) to a lane's rings and to the sums of windows that hold it."""
    tens = slot // _PER_WIDE if is_fine else slot
    if tens * _PER_WIDE > now_s + AHEAD_S or (is_fine and slot > now_s + AHEAD_S):
        lanes.ahead[lane] = True
        return
    in_fine = is_fine and slot > now_s - FINE_SLOTS
    in_wide = tens > now_s // _PER_WIDE - COARSE_SLOTS
    if in_fine:
        _put(lanes.fine[lane], lanes.fine_tags[lane], slot, counts)
    if in_wide:
        _put(lanes.wide[lane], lanes.wide_tags[lane], tens, counts)
    for place in range(PLACES):
        until = lanes.last[lane, place]
        mine = slot if _IS_FINE[place] else tens
        if (in_fine if _IS_FINE[place] else in_wide) and until - _SPANS[place] < mine <= until:
            for column in range(WIDTH):
                lanes.sums[lane, place, column] += counts[column]


@numba.njit(cache=True, nogil=True)
def _add_slots(lanes: Any, lane: Any, slots: Any, is_fine: Any, counts: Any, now_s: Any) -> None:
    for row in range(len(slots)):
        _add(lanes, lane, slots[row], is_fine[row], counts[row], now_s)


@numba.njit(cache=True, nogil=True)
def _add_rows(
    lanes: Any, boots: Any, lane_of: Any, ends: Any, boot_of: Any, seconds: Any, counts: Any, now_s: Any
) -> None:
    row = 0
    for key in range(len(ends)):
        lane = lane_of[key]
        while row < ends[key]:
            if lane >= 0 and (boots[lane] == ALL_BOOTS or boot_of[row] == 0 or boot_of[row] == boots[lane]):
                _add(lanes, lane, seconds[row], True, counts[row], now_s)
            row += 1


@numba.njit(cache=True, nogil=True)
def _roll(lanes: Any, which: Any, now_s: Any) -> None:
    """Move windows on to now: each whose slot is another is summed anew."""
    for lane in which:
        if now_s < lanes.last[lane, 0]:  # our own clock was set back
            lanes.ahead[lane] = True
        for place in range(PLACES):
            until = now_s if _IS_FINE[place] else now_s // _PER_WIDE
            if lanes.last[lane, place] == until:
                continue
            lanes.last[lane, place] = until
            lanes.sums[lane, place, :] = 0
            if _IS_FINE[place]:
                ring, tags = lanes.fine[lane], lanes.fine_tags[lane]
            else:
                ring, tags = lanes.wide[lane], lanes.wide_tags[lane]
            for slot in range(len(tags)):
                if until - _SPANS[place] < tags[slot] <= until:
                    for column in range(WIDTH):
                        lanes.sums[lane, place, column] += ring[slot, column]


class WindowBank:
    """Lanes for the keys that have had outcomes; 6.7 kB each."""

    def __init__(self, room: int = 1) -> None:
        """``room`` is how many lanes there is memory for at first."""
        self._used = 0
        self._free: list[int] = []
        self._boots: dict[str, int] = {"": 0}
        self._next_boot = 1
        self.boot = np.full(room, ALL_BOOTS, np.int64)
        """The number of the boot that counts in a lane (``number_of``), or ALL_BOOTS."""
        self._lanes = _lanes(room)

    @property
    def ahead(self) -> NDArray[np.bool_]:
        """Lanes that do not hold all that their windows will."""
        found: NDArray[np.bool_] = self._lanes.ahead
        return found

    @property
    def sums(self) -> NDArray[np.int64]:
        """The counts of each window as of its lane's last ``roll``, and what came since."""
        found: NDArray[np.int64] = self._lanes.sums
        return found

    def lane(self) -> int:
        """A lane of its own for one more key, empty."""
        if self._free:
            return self._free.pop()
        if self._used == len(self.boot):
            self._grow(2 * self._used)
        self._used += 1
        return self._used - 1

    def release(self, lane: int) -> None:
        """Its key is gone."""
        self.clear(lane)
        self.boot[lane] = ALL_BOOTS
        self._free.append(lane)

    def clear(self, lane: int) -> None:
        """Empty the lane; which boot counts stays."""
        lanes = self._lanes
        lanes.ahead[lane], lanes.sums[lane] = False, 0
        lanes.last[lane] = lanes.fine_tags[lane] = lanes.wide_tags[lane] = _EMPTY

    def _grow(self, room: int) -> None:
        boot, lanes = np.full(room, ALL_BOOTS, np.int64), _lanes(room)
        for old, new in zip((self.boot, *self._lanes), (boot, *lanes), strict=True):
            new[: len(old)] = old
        self.boot, self._lanes = boot, lanes

    def number_of(self, boot: str) -> int:
        """The number of a boot's name; 0 is that of outcomes that name none, which count in every lane."""
        number = self._boots.get(boot)
        if number is None:
            if len(self._boots) >= _MOST_BOOTS:
                counting = {0, *self.boot[: self._used].tolist()}
                self._boots = {name: number for name, number in self._boots.items() if number in counting}
            number = self._boots[boot] = self._next_boot
            self._next_boot += 1
        return number

    def fill(self, lane: int, slots: Sequence[tuple[int, bool, Cell]], now_ms: int) -> None:
        """Empty the lane, and add these slots of its key, of the boots that count: each one's number, whether
        it is a fine one, and what ended in it."""
        self.clear(lane)
        if slots:
            numbers = np.array([number for number, _, _ in slots], np.int64)
            fine = np.array([is_fine for _, is_fine, _ in slots], np.bool_)
            counts = np.array([[getattr(cell, name) for name in COUNTS] for *_, cell in slots], np.int64)
            _add_slots(self._lanes, lane, numbers, fine, counts, now_ms // FINE_MS)

    def add(
        self,
        lanes: NDArray[np.int64],
        ends: NDArray[np.int64],
        boot_of: NDArray[np.int64],
        seconds: NDArray[np.int64],
        counts: NDArray[np.int64],
        now_ms: int,
    ) -> None:
        """Add rows as minds.capacity.cell_columns has them; ``lanes`` is a key's lane, negative for none, and
        ``boot_of`` a row's ``number_of``."""
        _add_rows(self._lanes, self.boot, lanes, ends, boot_of, seconds, counts, now_ms // FINE_MS)

    def roll(self, lanes: NDArray[np.int64], now_ms: int) -> None:
        """Move the windows of these lanes on to now."""
        _roll(self._lanes, lanes, now_ms // FINE_MS)

    def roll_one(self, lane: int, now_ms: int) -> None:
        """The same for one lane."""
        if self._lanes.last[lane, 0] != now_ms // SLOTS_MS[0]:
            self.roll(np.array([lane], np.int64), now_ms)


class CellRows:
    """Cells that are to be added to lanes together."""

    __slots__ = ("_boots", "_counts", "_lanes", "_seconds")

    def __init__(self) -> None:
        self._lanes: list[int] = []
        self._boots: list[int] = []
        self._seconds: list[int] = []
        self._counts: list[list[int]] = []

    def note(self, lane: int, boot: int, second: int, cell: Cell) -> None:
        """One more, of the boot with this number."""
        self._lanes.append(lane)
        self._boots.append(boot)
        self._seconds.append(second)
        self._counts.append([getattr(cell, name) for name in COUNTS])

    def add_to(self, bank: WindowBank, now_ms: int) -> None:
        """Add them."""
        if self._lanes:
            ends = np.arange(1, len(self._lanes) + 1)
            lanes, boots, seconds = (
                np.array(each, np.int64) for each in (self._lanes, self._boots, self._seconds)
            )
            bank.add(lanes, ends, boots, seconds, np.array(self._counts, np.int64), now_ms)


def warm_up() -> None:
    """Compile, or load what was compiled before: seconds the first time."""
    bank, none = WindowBank(), np.zeros(0, np.int64)
    bank.fill(bank.lane(), [(0, True, Cell())], 0)
    bank.add(none, none, none, none, np.zeros((0, WIDTH), np.int64), 0)
    bank.roll(none, 0)
