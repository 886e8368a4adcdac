"""A key's state with what its row needs kept at hand: window counts that grow with each partial.

Adding a partial to the three windows costs a microsecond; summing the rings anew costs hundreds. So the
sums are kept, and built anew from the rings when a slot enters or leaves a window (each second for the
shortest) and after anything out of the ordinary (a re-cut interval, a new boot). Percentiles are read from
summed sketches at most each ``REFRESH_MS``, and once more when a key has fallen silent: they lag, they never
stay wrong. Keys read them at times of their own (``phase``), or all of a fleet would at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minds.capacity.folds import Delta, State, add, new_state, ranks_of
from minds.capacity.plausible import QUARANTINE_MS, impossible_rate
from minds.capacity.registers import RankRegister, Ranks, rates_of
from minds.capacity.signals import SignalReadings
from minds.merge import Partial, apply_rollup
from minds.sketch import published
from minds.windows import COARSE_MS, FINE_MS, FINE_SLOTS, SPANS_MS, Cell, add_counts, cells_of, take_counts
from schemas.fastpath import struct_of
from schemas.readings import Percentiles, WindowStats

REFRESH_MS = (2_000, 10_000, 10_000)
"""How old the percentiles of a busy window may be, for each span."""
SILENT_MS = 1_000

_Stats, _Percentiles = struct_of(WindowStats), struct_of(Percentiles)
_SLOT_MS = tuple(FINE_MS if span // FINE_MS < FINE_SLOTS else COARSE_MS for span in SPANS_MS)
_SPANS = tuple(map(float, SPANS_MS))
_SLOTS = tuple(span // slot for span, slot in zip(SPANS_MS, _SLOT_MS, strict=True))


class _Window:
    """The sums of one span up to slot ``last``, which is -1 where they must be built anew.

    ``counts`` are the sums when they were built, less what the key had grown by until then: what it has grown
    by since is the same for all spans, so it is counted once.
    """

    __slots__ = ("counts", "last", "queue", "read_at_ms", "tpot", "ttft", "unread")

    def __init__(self) -> None:
        self.last = -1
        self.counts = Cell()
        self.ttft: Any = None
        self.tpot: Any = None
        self.queue: Any = None
        self.read_at_ms = 0
        self.unread = True


class Live:
    """One key: its merge state, and its windows over the boots in ``boots`` (None: over all)."""

    __slots__ = (
        "_grown",
        "_impossible",
        "_jumped",
        "_phase",
        "_rates",
        "_reckoned",
        "_signals",
        "boots",
        "changed_at_ms",
        "heard_at_ms",
        "knee_tokens_per_s",
        "late",
        "ranks",
        "state",
        "windows",
    )

    def __init__(self, state: State | None = None, phase: float = 0.0) -> None:
        """``phase`` (0-1) is how far into REFRESH_MS the first percentiles count as read."""
        self._phase = phase
        self.state = state if state is not None else new_state()
        self.boots: tuple[str, ...] | None = None
        self.windows = (_Window(), _Window(), _Window())
        self.changed_at_ms = 0
        self.late = 0
        """Outcomes too old for any window."""
        self.knee_tokens_per_s: float | None = None
        """Seen by this worker in the current boot; not kept over a takeover, unknown until seen again."""
        self._grown = Cell()
        self._rates: dict[str, tuple[float, float]] = {}
        self._jumped: tuple[int, str] = (0, "")
        self._signals = SignalReadings()
        self._look()

    def apply(self, offset: int, partials: list[Partial[Delta]], now_ms: int) -> bool:
        """Take a rollup's partials by the merge rule; False where they had been taken before."""
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
        if told or not usual:
            self._look()
        if usual:
            for partial in partials:
                if partial.delta.cells:
                    self._grow(partial.delta)
        else:
            self.reset()
        return True

    def _look(self) -> None:
        """Take from the state what seldom changes."""
        state = self.state
        self.ranks: Ranks = ranks_of(state)
        self.late = state.closed.late + sum(held.delta.late for held in state.open.values())
        self._impossible = max([register.impossible for register in self.ranks.values()], default=(0, ""))
        self.heard_at_ms = max([register.at_ms for register in self.ranks.values()], default=0)
        """When telemetry last said anything."""
        self._reckoned = False

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
        boots, windows, grown = self.boots, self.windows, self._grown
        for boot, slots in delta.cells.items():
            if boots is not None and boot not in boots:
                continue
            for second, cell in slots.items():
                at_ms = second * FINE_MS
                for window, slot_ms, span in zip(windows, _SLOT_MS, _SLOTS, strict=True):
                    last = window.last
                    if last >= 0 and not last - span < at_ms // slot_ms <= last:
                        window.last = -1  # not in this one (an old or a future slot): build it anew
                add_counts(grown, cell)
        for window in windows:
            window.unread = True

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
        opened = [s for held in self.state.open.values() if (s := held.delta.signals) is not None]
        return self._signals.fields(self.state.closed.signals, opened, boot, now_ms)

    def stats(self, now_ms: int) -> list[Any]:
        """The windows' figures as structs of schemas.readings.WindowStats."""
        silent = now_ms - self.changed_at_ms >= SILENT_MS
        return [self._stats(place, now_ms, silent) for place in range(len(SPANS_MS))]

    def _stats(self, place: int, now_ms: int, silent: bool) -> Any:
        window = self.windows[place]
        last = now_ms // _SLOT_MS[place]
        grown = self._grown
        if last != window.last:
            window.last = last
            window.counts = counts = Cell()
            for cell in self._cells(place, last):
                add_counts(counts, cell)
            take_counts(counts, grown)
            window.unread = True
        if window.unread and (silent or now_ms - window.read_at_ms >= REFRESH_MS[place]):
            cells = list(self._cells(place, last))
            window.ttft = _percentiles(b"".join([cell.ttft for cell in cells]))
            window.tpot = _percentiles(b"".join([cell.tpot for cell in cells]))
            window.queue = _percentiles(b"".join([cell.queue for cell in cells]))
            first = window.read_at_ms == 0
            window.read_at_ms = now_ms - int(self._phase * REFRESH_MS[place]) if first else now_ms
            window.unread = False
        counts = window.counts
        return _Stats(
            span_ms=_SPANS[place],
            attempts=counts.attempts + grown.attempts,
            ok=counts.ok + grown.ok,
            good=counts.good + grown.good,
            timeout=counts.timeout + grown.timeout,
            cancelled=counts.cancelled + grown.cancelled,
            failed=counts.failed + grown.failed,
            shed=counts.shed + grown.shed,
            lost=counts.lost + grown.lost,
            output_tokens=counts.output_tokens + grown.output_tokens,
            good_tokens=counts.good_tokens + grown.good_tokens,
            wasted_tokens=counts.wasted_tokens + grown.wasted_tokens,
            ttft_ms=window.ttft,
            tpot_ms=window.tpot,
            queue_ms=window.queue,
        )

    def _cells(self, place: int, last: int) -> Iterator[Cell]:
        """All cells of the window's slots, closed and open, of the boots that count."""
        slot_ms, first = _SLOT_MS[place], last - _SLOTS[place] + 1
        boots = self.boots
        for boot, rings in self.state.closed.rings.items():
            if boots is None or boot in boots:
                yield from cells_of(rings, slot_ms, first, last)
        for held in self.state.open.values():
            for boot, slots in held.delta.cells.items():
                if boots is None or boot in boots:
                    for second, cell in slots.items():
                        if first <= second * FINE_MS // slot_ms <= last:
                            yield cell


def _percentiles(sketch: bytes) -> Any:
    """As minds.sketch.percentiles, as a struct."""
    found = published(sketch)
    return None if found is None else _Percentiles(**found)
