"""A key's state with what its row needs kept at hand: window counts that grow with each partial.

Counts are kept in a lane of a ``WindowBank``, where a rollup's cells are added for all keys at once. The
state itself may lag: cells that came in turn (``minds.merge.apply_in_turn``) wait until somebody looks at it,
and are then merged together. A lane is filled anew from the state after anything out of the ordinary: a
re-cut interval, a new boot. Percentiles are read from summed sketches at most each ``REFRESH_MS``, and with
each slot once a key has fallen silent: they lag, they never stay wrong. Keys read them at times of their own
(``phase``), or all of a fleet would at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from minds.capacity.cell_columns import CellColumns, cells_together
from minds.capacity.folds import Delta, State, add, new_state, ranks_of
from minds.capacity.kept_cells import Together
from minds.capacity.plausible import QUARANTINE_MS, impossible_rate
from minds.capacity.registers import RankRegister, Ranks, rates_of
from minds.capacity.signals import SignalReadings
from minds.capacity.window_bank import ALL_BOOTS, PLACES, SLOTS_MS, CellRows, WindowBank
from minds.merge import Interval, Open, Partial, apply_in_turn, apply_rollup
from minds.sketch import Sketch, published_all
from minds.windows import COUNTS, FINE_MS, SKETCHES, SPANS_MS, WIDTH, Cell, add_counts, cells_of
from schemas.fastpath import struct_of
from schemas.readings import Percentiles, WindowStats

REFRESH_MS = (2_000, 10_000, 10_000)
"""How old the percentiles of a busy window may be, for each span. The shortest's are read again after each
merge of what was kept for later, and wait for it."""
SILENT_MS = 1_000

_Stats, _Percentiles = struct_of(WindowStats), struct_of(Percentiles)
_SPANS = tuple(map(float, SPANS_MS))
_SLOTS = tuple(span // slot for span, slot in zip(SPANS_MS, SLOTS_MS, strict=True))
NO_COUNTS = [0] * WIDTH
NOTHING_KEPT: Mapping[str, Together] = MappingProxyType({})


class Shape:
    """The percentiles of one window, and when they were read (or count as read)."""

    __slots__ = ("change", "queue_ms", "read_at_ms", "slot", "tpot_ms", "ttft_ms")

    def __init__(self) -> None:
        self.ttft_ms: Any = None
        self.tpot_ms: Any = None
        self.queue_ms: Any = None
        self.read_at_ms = 0
        self.slot = self.change = -1


class Live:
    """One key: its merge state, and its windows over the boots in ``boots`` (None: over all)."""

    __slots__ = (
        "_bank",
        "_changes",
        "_impossible",
        "_jumped",
        "_merged",
        "_pending",
        "_phase",
        "_rates",
        "_reckoned",
        "_signals",
        "_state",
        "boots",
        "changed_at_ms",
        "filled",
        "heard_at_ms",
        "knee_tokens_per_s",
        "lane",
        "late",
        "ranks",
        "shapes",
    )

    def __init__(
        self, state: State | None = None, phase: float = 0.0, bank: WindowBank | None = None
    ) -> None:
        """``phase`` (0-1) is how far into REFRESH_MS the first percentiles count as read. ``bank`` is shared
        by keys that are to be added to together."""
        self._phase = phase
        self._state = state if state is not None else new_state()
        self._pending: list[tuple[int, Interval, CellColumns, int]] = []
        self._bank = bank if bank is not None else WindowBank()
        self.lane = -1
        """Its lane of the bank; negative while it has had no outcomes."""
        self.filled = False
        """Whether the lane holds what the state does."""
        self.boots: tuple[str, ...] | None = None
        self._merged = False
        self._changes = 0
        self.shapes = (Shape(), Shape(), Shape())
        self.changed_at_ms = 0
        self.late = 0
        """Outcomes too old for any window."""
        self.knee_tokens_per_s: float | None = None
        """Seen by this worker in the current boot; not kept over a takeover, unknown until seen again."""
        self._rates: dict[str, tuple[float, float]] = {}
        self._jumped: tuple[int, str] = (0, "")
        self._signals = SignalReadings()
        self._look()

    @property
    def state(self) -> State:
        """The merge state, with all that it has taken."""
        self.settle()
        return self._state

    @property
    def merged_state(self) -> State:
        """The same but for what it keeps for later since it last merged."""
        return self._state

    @property
    def applied(self) -> int:
        """The offset of the last rollup that it took, but for what it keeps for later."""
        return self._state.applied

    def awaits(self, interval: Interval) -> bool:
        """Whether the interval comes in turn: it replaces nothing of what was taken, and is no zombie's."""
        newest: Interval | Open[Delta] | None = self._state.open.get(interval.source)
        for _, kept, *_ in reversed(self._pending):
            if kept.source == interval.source:
                newest = kept
                break
        if newest is None:
            return True
        return interval.generation >= newest.generation and interval.base >= newest.upto

    def keep(self, offset: int, interval: Interval, columns: CellColumns, place: int, now_ms: int) -> int:
        """Take a partial later: the cells of ``columns`` at ``place``, of an interval that comes in turn.

        Returns the lane that they are to be added to now, or -1 where it will be filled from the state.
        """
        self._pending.append((offset, interval, columns, place))
        self.changed_at_ms = now_ms
        self._changes += 1
        return self.lane if self.filled else -1

    def settle(self, key: str = "", kept: Mapping[str, Together] = NOTHING_KEPT) -> None:
        """Merge what was kept for later: by the sums of ``kept`` (by source) where they are of just that."""
        if not self._pending:
            return
        self._merged = True
        pending, self._pending = self._pending, []
        by_source: dict[str, list[tuple[int, Interval, CellColumns, int]]] = {}
        for each in pending:
            by_source.setdefault(each[1].source, []).append(each)
        for source, mine in by_source.items():
            offset, interval, newest, place = mine[-1]
            earlier = [(columns, place) for _, _, columns, place in mine[:-1]]
            mark_ms = max([columns.mark_ms for columns, _ in earlier], default=0)
            if (
                (sums := kept.get(source)) is not None
                and sums.newest is newest
                and sums.times[key] == len(earlier) > 0
            ):
                earlier = [(sums.before, sums.places[key])]
            before = Delta(mark_ms, cells_together(earlier)) if earlier else None
            delta = Delta(newest.mark_ms, cells_together([(newest, place)]))
            apply_in_turn(self._state, offset, interval, before, delta, add)

    def apply(
        self, offset: int, partials: list[Partial[Delta]], now_ms: int, rows: CellRows | None = None
    ) -> bool:
        """Take a rollup's partials by the merge rule; False where they had been taken before.

        Cells that the lane lacks then go to ``rows``, or without it to the lane at once.
        """
        state = self.state
        usual, told = True, False
        for partial in partials:
            held = state.open.get(partial.source)
            if held is not None and (partial.generation < held.generation or partial.base < held.upto):
                usual = False
            if partial.delta.ranks or partial.delta.late:
                told = True
        if not apply_rollup(state, offset, partials, add):
            return False
        self.changed_at_ms = now_ms
        self._changes += 1
        if told or not usual:
            self._look()
        if not usual:
            self.filled = False
        elif self.filled:
            mine = rows if rows is not None else CellRows()
            for partial in partials:
                for boot, slots in partial.delta.cells.items():
                    for second, cell in slots.items():
                        mine.note(self.lane, self._bank.number_of(boot), second, cell)
            if rows is None:
                mine.add_to(self._bank, now_ms)
        return True

    def _look(self) -> None:
        """Take from the state what seldom changes."""
        state = self._state
        self.ranks: Ranks = ranks_of(state)
        self.late = state.closed.late + sum(held.delta.late for held in state.open.values())
        self._impossible = max([register.impossible for register in self.ranks.values()], default=(0, ""))
        self.heard_at_ms = max([register.at_ms for register in self.ranks.values()], default=0)
        """When telemetry last said anything."""
        self._reckoned = False

    def forget(self) -> None:
        """Give its lane back; nothing is to be asked of it any more."""
        if self.lane >= 0:
            self._bank.release(self.lane)
            self.lane, self.filled = -1, False

    def of_boots(self, boots: tuple[str, ...] | None) -> None:
        """Which boots count from now on."""
        if boots != self.boots:
            self.boots, self._rates, self._reckoned = boots, {}, False
            self.knee_tokens_per_s = None
            self.filled = False
            self.shapes = (Shape(), Shape(), Shape())

    def rates(self, ranks: Iterable[RankRegister], now_ms: int) -> dict[str, tuple[float, float]]:
        """Each counter's rate and when its newest sample was; reckoned when telemetry came, then it ages.

        A jump that no engine can make is not taken: the last good rates stay, and age.
        """
        if not self._reckoned:
            self._reckoned = True
            found = rates_of(ranks, now_ms)
            wrong = impossible_rate((name, rate) for name, (rate, _) in found.items())
            if wrong is not None:
                self._jumped = (now_ms, wrong)
            else:
                self._note_knee(found, ranks)
                self._rates = {name: (rate, now_ms - age_ms) for name, (rate, age_ms) in found.items()}
        return self._rates

    def _note_knee(self, found: dict[str, tuple[float, float]], ranks: Iterable[RankRegister]) -> None:
        """The most that it decoded while requests waited: more it can't."""
        rate = found.get("generation_tokens_total")
        waits = any(
            (known := r.gauges.get("requests_waiting")) is not None and known.value > 0 for r in ranks
        )
        if rate is not None and waits:
            self.knee_tokens_per_s = max(self.knee_tokens_per_s or 0.0, rate[0])

    def quarantined(self, now_ms: int) -> tuple[int, str] | None:
        """When it last said something impossible, and what; None once that is long enough ago."""
        said = max(self._jumped, self._impossible)
        return said if said[1] and now_ms - said[0] < QUARANTINE_MS else None

    def signals(self, boot: tuple[int, str], now_ms: int) -> dict[str, Any]:
        """The fields of its row that come of latencies, decisions and KV events of this boot."""
        state = self._state  # what is kept for later has no signals
        opened = [s for held in state.open.values() if (s := held.delta.signals) is not None]
        return self._signals.fields(state.closed.signals, opened, boot, now_ms)

    @property
    def has_signals(self) -> bool:
        """Whether its row has any such fields."""
        state = self._state
        return state.closed.signals is not None or any(
            held.delta.signals is not None for held in state.open.values()
        )

    def counts(self, now_ms: int) -> list[list[int]]:
        """The windows' counts, in the order of minds.windows.COUNTS."""
        if not self.filled:
            self._fill(now_ms)
        if self.lane < 0:
            return [NO_COUNTS] * PLACES
        bank = self._bank
        bank.roll_one(self.lane, now_ms)
        if bank.ahead[self.lane]:
            self.filled = False  # it may fit the next time
            return [self._summed(place, now_ms) for place in range(PLACES)]
        found: list[list[int]] = bank.sums[self.lane].tolist()
        return found

    def _fill(self, now_ms: int) -> None:
        self.filled = True
        slots: list[tuple[int, bool, Cell]] = []
        state, boots = self.state, self.boots
        for boot, rings in state.closed.rings.items():
            if boots is None or boot in boots:
                slots += [(slot, True, cell) for slot, cell in rings.fine.items()]
                slots += [(slot, False, cell) for slot, cell in rings.coarse.items()]
        for held in state.open.values():
            for boot, fine in held.delta.cells.items():
                if boots is None or boot in boots:
                    slots += [(slot, True, cell) for slot, cell in fine.items()]
        if self.lane < 0:
            if not state.closed.rings and not any(held.delta.cells for held in state.open.values()):
                self.filled = False
                return
            self.lane = self._bank.lane()
        self._bank.boot[self.lane] = ALL_BOOTS if boots is None else self._bank.number_of(boots[-1])
        self._bank.fill(self.lane, slots, now_ms)

    def _summed(self, place: int, now_ms: int) -> list[int]:
        """A window's counts, straight from the state."""
        total = Cell()
        for cell in self._cells(place, now_ms // SLOTS_MS[place], self.state):
            add_counts(total, cell)
        return [getattr(total, name) for name in COUNTS]

    def shapes_due(self, now_ms: int) -> bool:
        """Whether percentiles are to be read again: the shortest window's, and others along with them."""
        return self._merged or (not self._pending and now_ms - self.shapes[0].read_at_ms >= REFRESH_MS[0])

    def stats(self, now_ms: int) -> list[Any]:
        """The windows' figures as structs of schemas.readings.WindowStats."""
        counts = self.counts(now_ms)
        read_shapes([self], now_ms)
        return [
            _Stats(
                span_ms=_SPANS[place],
                **dict(zip(COUNTS, counts[place], strict=True)),
                ttft_ms=shape.ttft_ms,
                tpot_ms=shape.tpot_ms,
                queue_ms=shape.queue_ms,
            )
            for place, shape in enumerate(self.shapes)
        ]

    def sketches_due(self, now_ms: int) -> Iterator[tuple[Shape, list[Sketch]]]:
        """The windows whose percentiles are to be read again, each with its SKETCHES; they count as read."""
        silent = now_ms - self.changed_at_ms >= SILENT_MS
        merged, self._merged = self._merged, False
        for place, shape in enumerate(self.shapes):
            slot = now_ms // SLOTS_MS[place]
            moved = silent and (shape.slot != slot or shape.change != self._changes)
            stale = moved or (merged and place == 0)
            if stale or now_ms - shape.read_at_ms >= REFRESH_MS[place]:
                # What a busy key keeps for later is two seconds': its percentiles wait for it, nobody else.
                cells = list(self._cells(place, slot, self.state if silent else self._state))
                first = shape.read_at_ms == 0
                shape.read_at_ms = now_ms - int(self._phase * REFRESH_MS[place]) if first else now_ms
                shape.slot, shape.change = slot, self._changes if silent else -1
                if not cells and shape.ttft_ms is shape.tpot_ms is shape.queue_ms is None:
                    continue  # there were none, and there are none
                yield (
                    shape,
                    [
                        b"".join([cell.ttft for cell in cells]),
                        b"".join([cell.tpot for cell in cells]),
                        b"".join([cell.queue for cell in cells]),
                    ],
                )

    def _cells(self, place: int, last: int, state: State) -> Iterator[Cell]:
        """All cells of the window's slots, closed and open, of the boots that count."""
        slot_ms, first = SLOTS_MS[place], last - _SLOTS[place] + 1
        boots = self.boots
        for boot, rings in state.closed.rings.items():
            if boots is None or boot in boots:
                yield from cells_of(rings, slot_ms, first, last)
        for held in state.open.values():
            for boot, slots in held.delta.cells.items():
                if boots is None or boot in boots:
                    for second, cell in slots.items():
                        if first <= second * FINE_MS // slot_ms <= last:
                            yield cell


def read_shapes(lives: Iterable[Live], now_ms: int) -> None:
    """Read the percentiles of these keys that are due, all together."""
    due = [each for live in lives for each in live.sketches_due(now_ms)]
    found = iter(published_all([sketch for _, sketches in due for sketch in sketches]))
    for shape, _ in due:
        shape.ttft_ms, shape.tpot_ms, shape.queue_ms = (_percentiles(next(found)) for _ in SKETCHES)


def _percentiles(found: dict[str, float] | None) -> Any:
    return None if found is None else _Percentiles(**found)
