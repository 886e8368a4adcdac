"""A key's state with what its row needs kept at hand: window counts that grow with each partial.

Adding a partial to the three windows costs a microsecond; summing the rings anew costs hundreds. So the
sums are kept, and built anew from the rings when a slot enters or leaves a window (each second for the
shortest) and after anything out of the ordinary (a re-cut interval, a new boot). Percentiles are read from
summed sketches at most each ``REFRESH_MS``, and once more when a key has fallen silent: they lag, they never
stay wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minds.capacity.folds import Delta, State, add, new_state, ranks_of
from minds.capacity.plausible import QUARANTINE_MS, impossible_rate
from minds.capacity.registers import RankRegister, Ranks, rates_of
from minds.merge import Partial, apply_rollup
from minds.sketch import Sketch, merge_into, percentiles
from minds.windows import COARSE_MS, FINE_MS, FINE_SLOTS, SPANS_MS, Cell, Slots, add_counts
from schemas.fastpath import struct_of
from schemas.readings import Percentiles, WindowStats

REFRESH_MS = (2_000, 10_000, 10_000)
"""How old the percentiles of a busy window may be, for each span."""
SILENT_MS = 1_000

_Stats, _Percentiles = struct_of(WindowStats), struct_of(Percentiles)
_SLOT_MS = tuple(FINE_MS if span // FINE_MS < FINE_SLOTS else COARSE_MS for span in SPANS_MS)
_SLOTS = tuple(span // slot for span, slot in zip(SPANS_MS, _SLOT_MS, strict=True))


class _Window:
    """The sums of one span up to slot ``last``, which is -1 where they must be built anew."""

    __slots__ = ("counts", "last", "read_at_ms", "tpot", "ttft", "unread")

    def __init__(self) -> None:
        self.last = -1
        self.counts = Cell()
        self.ttft: Any = None
        self.tpot: Any = None
        self.read_at_ms = 0
        self.unread = True


class Live:
    """One key: its merge state, and its windows over the boots in ``boots`` (None: over all)."""

    __slots__ = (
        "_jumped",
        "_rates",
        "_reckoned",
        "boots",
        "changed_at_ms",
        "knee_tokens_per_s",
        "ranks",
        "state",
        "windows",
    )

    def __init__(self, state: State | None = None) -> None:
        self.state = state if state is not None else new_state()
        self.boots: tuple[str, ...] | None = None
        self.ranks: Ranks = ranks_of(self.state)
        self.windows = (_Window(), _Window(), _Window())
        self.changed_at_ms = 0
        self._rates: dict[str, tuple[float, float]] = {}
        self._reckoned = False
        self._jumped: tuple[int, str] = (0, "")
        self.knee_tokens_per_s: float | None = None
        """Seen by this worker in the current boot; not kept over a takeover, unknown until seen again."""

    def apply(self, offset: int, partials: list[Partial[Delta]], now_ms: int) -> bool:
        """Take a rollup's partials by the merge rule; False where they had been taken before."""
        state = self.state
        usual = all(
            (held := state.open.get(partial.source)) is None
            or (partial.generation >= held.generation and partial.base >= held.upto)
            for partial in partials
        )
        told = any(partial.delta.ranks for partial in partials)
        if not apply_rollup(state, offset, partials, add):
            return False
        self.changed_at_ms = now_ms
        if told or not usual:
            self.ranks = ranks_of(state)
            self._reckoned = False
        if usual:
            for partial in partials:
                self._grow(partial.delta)
        else:
            self.reset()
        return True

    def reset(self) -> None:
        """Build the windows anew when they are next looked at."""
        for window in self.windows:
            window.last, window.unread = -1, True

    def of_boots(self, boots: tuple[str, ...] | None) -> None:
        """Which boots count from now on."""
        if boots != self.boots:
            self.boots, self._rates, self._reckoned = boots, {}, False
            self.knee_tokens_per_s = None
            self.reset()

    def _grow(self, delta: Delta) -> None:
        for boot, slots in delta.cells.items():
            if self.boots is not None and boot not in self.boots:
                continue
            for place, window in enumerate(self.windows):
                last = window.last
                window.unread = True
                if last < 0:
                    continue
                for second, cell in slots.items():
                    if last - _SLOTS[place] < second * FINE_MS // _SLOT_MS[place] <= last:
                        add_counts(window.counts, cell)

    @property
    def late(self) -> int:
        """Outcomes too old for any window."""
        return self.state.closed.late + sum(held.delta.late for held in self.state.open.values())

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
        said = max([self._jumped, *(register.impossible for register in self.ranks.values())])
        return said if said[1] and now_ms - said[0] < QUARANTINE_MS else None

    def stats(self, now_ms: int) -> list[Any]:
        """The windows' figures as structs of schemas.readings.WindowStats."""
        silent = now_ms - self.changed_at_ms >= SILENT_MS
        return [self._stats(place, now_ms, silent) for place in range(len(SPANS_MS))]

    def _stats(self, place: int, now_ms: int, silent: bool) -> Any:
        window = self.windows[place]
        last = now_ms // _SLOT_MS[place]
        if last != window.last:
            window.last = last
            window.counts = counts = Cell()
            for cell in self._cells(place, last):
                add_counts(counts, cell)
            window.unread = True
        if window.unread and (silent or now_ms - window.read_at_ms >= REFRESH_MS[place]):
            window.ttft, window.tpot = self._read(self._cells(place, last))
            window.read_at_ms, window.unread = now_ms, False
        counts = window.counts
        return _Stats(
            span_ms=float(SPANS_MS[place]),
            attempts=counts.attempts,
            ok=counts.ok,
            good=counts.good,
            timeout=counts.timeout,
            cancelled=counts.cancelled,
            failed=counts.failed,
            shed=counts.shed,
            lost=counts.lost,
            output_tokens=counts.output_tokens,
            good_tokens=counts.good_tokens,
            wasted_tokens=counts.wasted_tokens,
            ttft_ms=window.ttft,
            tpot_ms=window.tpot,
        )

    @staticmethod
    def _read(cells: Iterable[Cell]) -> tuple[Any, Any]:
        ttft: Sketch = {}
        tpot: Sketch = {}
        for cell in cells:
            merge_into(ttft, cell.ttft)
            merge_into(tpot, cell.tpot)
        return _published(ttft), _published(tpot)

    def _cells(self, place: int, last: int) -> Iterator[Cell]:
        """All cells of the window's slots, closed and open, of the boots that count."""
        slot_ms, first = _SLOT_MS[place], last - _SLOTS[place]
        boots = self.boots
        for boot, rings in self.state.closed.rings.items():
            if boots is None or boot in boots:
                ring: Slots = rings.fine if slot_ms == FINE_MS else rings.coarse
                for slot, cell in ring.items():
                    if first < slot <= last:
                        yield cell
        for held in self.state.open.values():
            for boot, slots in held.delta.cells.items():
                if boots is None or boot in boots:
                    for second, cell in slots.items():
                        if first < second * FINE_MS // slot_ms <= last:
                            yield cell


def _published(sketch: Sketch) -> Any:
    found = percentiles(sketch)
    return None if found is None else _Percentiles(p50=found.p50, p90=found.p90, p95=found.p95, p99=found.p99)
