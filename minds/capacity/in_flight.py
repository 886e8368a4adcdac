"""In flight by the log: what was dispatched to an instance's boot and has not ended yet.

Decisions add, outcomes take away, and deltas of both add up in any order. They are counted by the *deadline*
of the intent, which a decision and its outcome share: a deadline's count goes back to nothing by itself, and
is forgotten once deadline and closer have passed. So what the log can't balance (an outcome without its
decision, a request that was given up as lost and then ended all the same) is wrong for a while, never for
ever, and stays within its own ten seconds of deadlines: less than nothing there counts as nothing.

Work is counted in thousandths of a work token, as whole numbers, since sums of fractions would depend on
their order.

It costs 0.6 us of CPU a decision, 0.02 us an outcome over columns (``in_flight_columns``), and 7 us to read
seven slots of three parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from minds.capacity.registers import UNKNOWN, reading_of

SLOT_MS = 10_000
"""Deadlines that count together."""
KEPT_AFTER_MS = 120_000
"""How long after its deadline a slot is kept: the closer ends what nobody else does 30 s after it."""
KNOWN_FOR_MS = 15 * 60_000
"""Without a decision for so long, whether any router still logs them is not known."""
FARTHEST_MS = 86_400_000
"""A deadline that is farther ahead than any policy allows is not counted: nobody could forget it."""
WORK_PARTS = 1_000


class Open(msgspec.Struct, array_like=True):
    """Attempts and work (in thousandths of a token) of one slot: decided less ended."""

    attempts: int = 0
    work: int = 0


class Flights(msgspec.Struct, array_like=True):
    """One boot of an instance: its open slots by deadline (epoch ms // 10 s), those at nothing left out.

    ``decided_at_ms`` is the newest record time of a decision, 0 where none was seen.
    """

    decided_at_ms: int = 0
    slots: dict[int, Open] = {}
    """Of a delta a slot at nothing may be there too."""


InFlight = dict[str, Flights]
"""By boot of the instance ("" where unknown)."""


def count_decision(flights: InFlight, decision: Any, record_ms: int) -> None:
    """Count a dispatched schemas.decisions.Decision (or its struct); ``record_ms`` is its record's time."""
    boot = _boot(flights, decision.instance_boot)
    boot.decided_at_ms = max(boot.decided_at_ms, record_ms)
    if decision.deadline_at_ms <= decision.at_ms + FARTHEST_MS:
        _add(boot.slots, decision.deadline_at_ms // SLOT_MS, 1, work_parts(decision.work_tokens))


def count_end(flights: InFlight, outcome: Any) -> None:
    """Count a schemas.outcomes.Outcome (or its struct) that names an instance and tells its deadline."""
    if outcome.deadline_at_ms is None:
        return
    if outcome.deadline_at_ms <= outcome.at_ms + FARTHEST_MS:
        slots = _boot(flights, outcome.instance_boot).slots
        _add(slots, outcome.deadline_at_ms // SLOT_MS, -1, -work_parts(outcome.work_tokens))


def count_slot(flights: InFlight, boot: str, slot: int, attempts: int, work: int) -> None:
    """Count many at once, as ``minds.capacity.in_flight_columns`` sums them."""
    _add(_boot(flights, boot).slots, slot, attempts, work)


def work_parts(work_tokens: float | None) -> int:
    """Work in thousandths of a token; unknown work is none."""
    return 0 if work_tokens is None else round(work_tokens * WORK_PARTS)


def add_flights(total: InFlight, delta: InFlight) -> None:
    """Add a delta to another or to a total, in place. ``delta`` stays as it is."""
    for name, theirs in delta.items():
        mine = _boot(total, name)
        mine.decided_at_ms = max(mine.decided_at_ms, theirs.decided_at_ms)
        for slot, grown in theirs.slots.items():
            _add(mine.slots, slot, grown.attempts, grown.work)


def forget_old(flights: InFlight, mark_ms: int) -> None:
    """Drop, at the record time ``mark_ms``, slots whose requests have all been closed, and boots of which
    nothing is left and no decision was seen for long."""
    first = (mark_ms - KEPT_AFTER_MS) // SLOT_MS
    for name, boot in list(flights.items()):
        if boot.slots and min(boot.slots) < first:
            for slot in [slot for slot in boot.slots if slot < first]:
                del boot.slots[slot]
        if not boot.slots and mark_ms - boot.decided_at_ms > KNOWN_FOR_MS:
            del flights[name]


def _boot(flights: InFlight, name: str | None) -> Flights:
    found = flights.get(name or "")
    if found is None:
        found = flights[name or ""] = Flights(0, {})
    return found


def _add(slots: dict[int, Open], slot: int, attempts: int, work: int) -> None:
    held = slots.get(slot)
    if held is None:
        slots[slot] = Open(attempts, work)
        return
    held.attempts += attempts
    held.work += work
    if not held.attempts and not held.work:
        del slots[slot]


class InFlightReadings(NamedTuple):
    """The readings of an instance row."""

    requests: Any
    work_tokens: Any


NOT_KNOWN = InFlightReadings(UNKNOWN, UNKNOWN)


def in_flight_of(parts: Iterable[InFlight], boot: str, now_ms: int) -> InFlightReadings:
    """What is in flight at this boot now; decisions that name no boot count for it too.

    ``parts`` are the closed total and the deltas of the open partials. Unknown where no decision was seen for
    15 minutes. A count is as old as nothing: it holds until the log says otherwise.
    """
    attempts: dict[int, int] = {}
    work: dict[int, int] = {}
    decided_ms = 0
    for part in parts:
        for name in {"", boot}:
            flights = part.get(name)
            if flights is not None:
                decided_ms = max(decided_ms, flights.decided_at_ms)
                for slot, each in flights.slots.items():
                    attempts[slot] = attempts.get(slot, 0) + each.attempts
                    work[slot] = work.get(slot, 0) + each.work
    if now_ms - decided_ms > KNOWN_FOR_MS:
        return NOT_KNOWN
    first = (now_ms - KEPT_AFTER_MS) // SLOT_MS
    slots = [slot for slot, count in attempts.items() if count > 0 and slot >= first]
    return InFlightReadings(
        reading_of(float(sum(attempts[slot] for slot in slots)), 0.0),
        reading_of(sum(max(0, work[slot]) for slot in slots) / WORK_PARTS, 0.0),
    )
