"""Folds: from events to a delta a key, from deltas to totals. Exact, and blind to order.

Keys name what a partial is about and which pool's partition it goes to:
``i|pool|instance`` (telemetry, once for each pool it lists; outcomes that name an instance) and
``r|region|pool`` (all outcomes of a region and pool, those that never reached an instance too).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from minds.capacity.cache_events import count_kv_event
from minds.capacity.engine_latency import join_told, told_of
from minds.capacity.in_flight import count_decision, count_end
from minds.capacity.registers import Ranks, forget_old_samples, join_ranks, register_of
from minds.capacity.signals import SignalsDelta, SignalsTotal, add_signals
from minds.merge import Merged
from minds.windows import FINE_MS, LATE_AFTER_MS, Rings, Slots, add_slots, count_outcome, forget_old


class Key(NamedTuple):
    """A parsed key. ``name`` is the instance, or the region where ``kind`` is ``r``."""

    kind: Literal["i", "r"]
    pool: str
    name: str


def instance_key(pool: str, instance: str) -> str:
    """The key of one instance's figures for one pool."""
    return f"i|{pool}|{instance}"


def region_key(region: str, pool: str) -> str:
    """The key of a region's outcomes for one pool."""
    return f"r|{region}|{pool}"


@lru_cache(maxsize=200_000)
def parse_key(key: str) -> Key:
    """The parts of a key; ValueError for anything else."""
    parts = key.split("|")
    if len(parts) == 3 and parts[0] == "i":
        return Key("i", parts[1], parts[2])
    if len(parts) == 3 and parts[0] == "r":
        return Key("r", parts[2], parts[1])
    raise ValueError(
        f"{key!r} is not a key of the capacity table; it takes i|pool|instance or r|region|pool."
    )


class Delta(msgspec.Struct, omit_defaults=True):
    """What one interval of one source partition adds to a key."""

    mark_ms: int
    """The highest record time stamp of the interval."""
    cells: dict[str, Slots] = {}
    """Boot of the instance ("" where unknown) to fine slots."""
    ranks: Ranks = {}
    late: int = 0
    signals: SignalsDelta | None = None


class Total(msgspec.Struct, omit_defaults=True):
    """All that is kept of a key."""

    mark_ms: int = 0
    rings: dict[str, Rings] = {}
    ranks: Ranks = {}
    late: int = 0
    signals: SignalsTotal | None = None


State = Merged[Delta, Total]


def new_state() -> State:
    """The state of a key that was never seen."""
    return Merged(closed=Total())


def fold_outcome(deltas: dict[str, Delta], outcome: Any, record_ms: int) -> None:
    """Add one outcome to the deltas of its keys: the plain definition of ``minds.capacity.outcomes``.

    ``record_ms`` is the time stamp of its Kafka record.
    """
    region = outcome.region or outcome.entry_region
    places = [(region_key(region, outcome.pool), "")]
    if outcome.instance is not None:
        key = instance_key(outcome.pool, outcome.instance)
        places.insert(0, (key, outcome.instance_boot or ""))
        count_end(signals_of(_delta(deltas, key, record_ms)).in_flight, outcome)
    if record_ms - outcome.at_ms > LATE_AFTER_MS:
        _delta(deltas, places[0][0], record_ms).late += 1
        return
    for key, boot in places:
        count_outcome(_delta(deltas, key, record_ms).cells.setdefault(boot, {}), outcome)


def fold_telemetry(deltas: dict[str, Delta], telemetry: Any, record_ms: int) -> None:
    """Join one telemetry event into the delta of its instance for each pool that it lists."""
    register = register_of(telemetry)
    for pool in dict.fromkeys(telemetry.pools):
        delta = _delta(deltas, instance_key(pool, telemetry.instance), record_ms)
        join_ranks(delta.ranks, {telemetry.rank: register})
    if telemetry.latencies and register.at_ms:  # its home pool's row is the one that is published
        delta = _delta(deltas, instance_key(telemetry.pools[0], telemetry.instance), record_ms)
        join_told(signals_of(delta).latencies, told_of(telemetry))


def fold_decision(deltas: dict[str, Delta], decision: Any, record_ms: int) -> None:
    """Add one decision to the delta of the instance that it was dispatched to."""
    if decision.verdict == "dispatched" and decision.instance is not None:
        delta = _delta(deltas, instance_key(decision.pool, decision.instance), record_ms)
        count_decision(signals_of(delta).in_flight, decision, record_ms)


def fold_kv_event(deltas: dict[str, Delta], event: Any, record_ms: int) -> None:
    """Add one KV event to the delta of its instance."""
    delta = _delta(deltas, instance_key(event.pool, event.instance), record_ms)
    count_kv_event(signals_of(delta).cache, event)


def signals_of(delta: Delta) -> SignalsDelta:
    """The signals of a delta, made where there were none."""
    if delta.signals is None:
        delta.signals = SignalsDelta({}, {}, {})
    return delta.signals


def _delta(deltas: dict[str, Delta], key: str, record_ms: int) -> Delta:
    delta = deltas.get(key)
    if delta is None:
        delta = deltas[key] = Delta(record_ms)
    elif record_ms > delta.mark_ms:
        delta.mark_ms = record_ms
    return delta


def add(total: Total, delta: Delta) -> None:
    """Add a delta to a total in place (the ``add`` of minds.merge)."""
    before, mark_ms = total.mark_ms, max(total.mark_ms, delta.mark_ms)
    total.mark_ms = mark_ms
    total.late += delta.late
    for boot, slots in delta.cells.items():
        rings = total.rings.get(boot)
        if rings is None:
            rings = total.rings[boot] = Rings({}, {})
        add_slots(rings, slots, mark_ms)
        if not rings.fine and not rings.coarse:
            del total.rings[boot]
    if delta.ranks:
        join_ranks(total.ranks, delta.ranks)
    if delta.signals is not None:
        total.signals = add_signals(total.signals, delta.signals, mark_ms)
    # What was added is not too old; only where the second has changed is there anything to forget.
    if delta.ranks or mark_ms // FINE_MS != before // FINE_MS:
        forget_old_samples(total.ranks, mark_ms)
        for boot, rings in list(total.rings.items()):
            forget_old(rings, mark_ms)
            if not rings.fine and not rings.coarse:
                del total.rings[boot]


class Value(NamedTuple):
    """A key's value now: the closed total and the open partials, looked at together."""

    rings: list[tuple[str, Rings]]
    ranks: Ranks
    late: int
    mark_ms: int


def value_of(state: State) -> Value:
    """Look at a key without changing it."""
    closed = state.closed
    rings = list(closed.rings.items())
    late, mark_ms = closed.late, closed.mark_ms
    for held in state.open.values():
        late += held.delta.late
        mark_ms = max(mark_ms, held.delta.mark_ms)
        rings += [(boot, Rings(slots, {})) for boot, slots in held.delta.cells.items()]
    return Value(rings, ranks_of(state), late, mark_ms)


def ranks_of(state: State) -> Ranks:
    """The registers of a key, closed and open together."""
    ranks: Ranks = {}
    join_ranks(ranks, state.closed.ranks)
    for held in state.open.values():
        join_ranks(ranks, held.delta.ranks)
    return ranks


# ------------------------------------------------------------------------------------------ on the wire

FORMAT = 3
"""Of what changelogs hold. It is part of the tables' and the group's names, so a worker never reads another
format's: it builds its tables anew from the rollups (docs/operations/streams.md)."""

_STATE = msgspec.msgpack.Decoder(Merged[Delta, Total])


def encode_state(state: State) -> bytes:
    """A state as the changelog keeps it (msgpack)."""
    return msgspec.msgpack.encode(state)


def decode_state(value: bytes) -> State:
    """The state of a changelog record; msgspec.DecodeError where it is none."""
    return _STATE.decode(value)
