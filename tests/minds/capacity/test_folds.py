"""Folds: keys, late events, the wire form, and that stage one then stage two equals one plain loop."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.columns import FIRST_ROWS, ColumnFold, Keys, Name, warm_up
from minds.capacity.folds import (
    Delta,
    add,
    decode_state,
    encode_state,
    fold_outcome,
    fold_telemetry,
    instance_key,
    new_state,
    parse_key,
    region_key,
    value_of,
)
from minds.capacity.outcomes import OutcomeFold
from minds.merge import Partial, apply_rollup
from minds.windows import LATE_AFTER_MS, compact, window_stats
from schemas.outcomes import CAUSES, Outcome
from schemas.readings import EngineCounters, EngineGauges, Reading
from schemas.telemetry import Telemetry
from tests.minds.capacity.outcome_columns import add_cells, columns_of

T0 = 1_796_000_000_000
POOL = "m@v1"


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiling takes seconds, more than hypothesis allows an example."""
    warm_up()


def outcome(number: int, at_ms: int, **changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "decision_id": f"d{number}",
        "intent_id": f"n{number}",
        "intent_inferred": True,
        "attempt": 1,
        "router": "r-1",
        "router_boot": "rb",
        "tenant": "t",
        "service_class": "chat",
        "pool": POOL,
        "entry_region": "edge",
        "region": "eu",
        "instance": "i-1",
        "instance_boot": "b0",
        "cause": "ok",
        "at_ms": at_ms,
        "intent_started_at_ms": at_ms - 500,
        "started_at_ms": at_ms - 500,
        "ttft_ms": 100.0 + number,
        "tpot_ms": 20.0,
        "output_tokens": 10,
        "wasted_tokens": 0,
        "ttft_slo_ms": 2000.0,
        "tpot_slo_ms": 60.0,
        "deadline_at_ms": at_ms + 60_000,
        "within_slo": True,
    }
    return Outcome(**(fields | changes))


def scrape(at_ms: int, pools: list[str]) -> Telemetry:
    return Telemetry(
        instance="i-1",
        boot="b0",
        boot_started_at_ms=T0 - 60_000,
        engine="vllm",
        region="eu",
        pools=pools,
        at_ms=at_ms,
        reachable=True,
        gauges=EngineGauges(requests_running=Reading(value=2.0, quality="fresh", age_ms=0.0)),
        counters=EngineCounters(generation_tokens_total=Reading(value=5.0, quality="fresh", age_ms=0.0)),
    )


def over_the_wire(delta: Delta) -> Delta:
    return msgspec.json.decode(msgspec.json.encode(delta), type=Delta)


def test_keys() -> None:
    deltas: dict[str, Delta] = {}
    fold_outcome(deltas, outcome(0, T0), T0)
    fold_outcome(deltas, outcome(1, T0, instance=None, region=None, cause="shed"), T0)
    fold_telemetry(deltas, scrape(T0, [POOL, "lora@v1"]), T0)
    assert set(deltas) == {
        instance_key(POOL, "i-1"),
        region_key("edge", POOL),
        region_key("eu", POOL),
        instance_key("lora@v1", "i-1"),
    }
    assert parse_key(region_key("edge", POOL)) == ("r", POOL, "edge")
    for bad in ("x|y|z", "i|only", ""):
        with pytest.raises(ValueError, match="not a key"):
            parse_key(bad)


def test_a_late_outcome_is_counted_as_late_and_in_no_window() -> None:
    deltas: dict[str, Delta] = {}
    fold_outcome(deltas, outcome(0, T0 - LATE_AFTER_MS - 1), T0)
    delta = deltas[instance_key(POOL, "i-1")]
    assert (delta.late, delta.cells) == (1, {})


@given(
    st.lists(st.tuples(st.integers(0, 400_000), st.sampled_from(CAUSES)), min_size=1, max_size=50),
    st.integers(0, 2**20),
)
def test_two_stages_equal_one_loop(drawn: list[tuple[int, str]], seed: int) -> None:
    """Events in log order, two sources, cut anywhere, through JSON and the changelog's form at every step."""
    rng = random.Random(seed)
    events = [(outcome(n, T0 + at, cause=cause), T0 + at) for n, (at, cause) in enumerate(sorted(drawn))]
    reference: dict[str, Delta] = {}
    for event, record_ms in events:
        fold_outcome(reference, event, record_ms)
    key = instance_key(POOL, "i-1")
    expected = new_state()
    add(expected.closed, reference[key])

    state, offset = new_state(), 0
    for source in ("a:0", "b:0"):
        mine = [entry for n, entry in enumerate(events) if n % 2 == (source == "b:0")]
        at = 0
        while at < len(mine):
            upto = at + rng.randint(1, 9)
            fold, mark_ms = OutcomeFold(), 0
            for event, record_ms in mine[at:upto]:
                mark_ms = max(mark_ms, record_ms)
                assert fold.take([event], record_ms - LATE_AFTER_MS, record_ms) == []
            deltas = fold.deltas(mark_ms)
            partial = Partial(source, 1, at, upto, over_the_wire(deltas[key]))
            assert apply_rollup(state, offset, [partial], add)
            state = decode_state(encode_state(state))
            at, offset = upto, offset + 1
    now = T0 + max(at for at, _ in drawn)
    got, want = value_of(state), value_of(expected)
    windows = window_stats([rings for _, rings in got.rings], now)
    assert windows == window_stats([rings for _, rings in want.rings], now)
    assert (got.late, got.mark_ms) == (want.late, want.mark_ms)


@given(
    st.lists(
        st.tuples(
            st.integers(0, LATE_AFTER_MS + 2_000),
            st.sampled_from(CAUSES),
            st.sampled_from(["i-1", "i-2", None]),
            st.sampled_from(["b0", None]),
            st.sampled_from(["eu", None]),
            st.booleans(),
            st.sampled_from([None, 0, 7]),
        ),
        max_size=40,
    )
)
def test_both_fast_folds_are_the_plain_one(drawn: list[tuple]) -> None:
    record_ms = T0 + LATE_AFTER_MS + 1_000
    plain: dict[str, Delta] = {}
    fast = OutcomeFold()
    outcomes = [
        outcome(n, T0 + at, cause=cause, instance=instance, instance_boot=boot, region=region,
                within_slo=good, output_tokens=tokens, wasted_tokens=tokens,
                ttft_ms=None if tokens is None else 50.0 + n)
        for n, (at, cause, instance, boot, region, good, tokens) in enumerate(drawn)
    ]  # fmt: skip
    for event in outcomes:
        fold_outcome(plain, event, record_ms)
    for event in fast.take(outcomes, record_ms - LATE_AFTER_MS, record_ms):
        fast.take_one(event, record_ms)
    assert in_order(fast.deltas(record_ms)) == in_order(plain)
    late = [event for event in outcomes if record_ms - event.at_ms > LATE_AFTER_MS]
    names: list[Name] = []
    columns, rest = ColumnFold(Keys(names, lambda pool: len(pool) % 2)), OutcomeFold()
    for event in late:
        rest.take_one(event, record_ms)
    timely = [event for event in outcomes if event not in late]
    half = len(timely) // 2
    for part in (timely[:half], timely[half:]):
        columns.take(columns_of(part, names))
    deltas = rest.deltas(record_ms)
    columns.add_ends(deltas, record_ms)
    for cells in columns.cells(record_ms).values():
        assert cells.wrong() is None
        for part in cells.split(300):
            assert part.wrong() is None
            add_cells(deltas, part)
    assert in_order(deltas) == in_order(plain)


def test_columns_hold_as_many_rows_as_there_are() -> None:
    rng, names = random.Random(4), list[Name]()
    drawn = [(rng.randrange(700), rng.randrange(9_000)) for _ in range(9_000)]
    outcomes = [outcome(n, T0 + at, instance=f"i-{which}") for n, (which, at) in enumerate(drawn)]
    plain: dict[str, Delta] = {}
    for event in outcomes:
        fold_outcome(plain, event, T0 + 9_000)
    fold = ColumnFold(Keys(names))
    fold.take(columns_of(outcomes, names))
    deltas: dict[str, Delta] = {}
    fold.add_ends(deltas, T0 + 9_000)
    [cells] = fold.cells(T0 + 9_000).values()
    assert len(cells.seconds) > 4 * FIRST_ROWS
    add_cells(deltas, cells)
    assert in_order(deltas) == in_order(plain)


def in_order(deltas: dict[str, Delta]) -> dict[str, Delta]:
    for delta in deltas.values():
        for slots in delta.cells.values():
            compact(slots)
    return deltas


def test_a_delta_that_is_none_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"mark_ms": "soon"}', type=Delta)
