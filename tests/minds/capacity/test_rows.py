"""Rows: states, current boots, and what of a region is known."""

from __future__ import annotations

from typing import Any

import pytest

from minds.capacity.folds import State, Total
from minds.capacity.live import Live
from minds.capacity.registers import RankRegister, register_of
from minds.capacity.rows import Grants, Stamp, has_left, heard_at_ms, instance_row, members_of, region_row
from minds.windows import Rings, add_slots, count_outcome
from schemas.endpoints import EndpointRow
from schemas.fastpath import encode
from schemas.readings import EngineGauges, Reading
from schemas.tables import InstanceRow, RegionRow
from schemas.telemetry import Telemetry

T0 = 1_796_000_000_000
POOL = "m@v1"
STAMP = Stamp(T0, 7, 3)


def endpoint(**changes: Any) -> EndpointRow:
    fields: dict[str, Any] = {
        "as_of_ms": T0,
        "valid_for_ms": 5_000.0,
        "epoch": 1,
        "version": 1,
        "instance": "i-1",
        "boot": "b0",
        "boot_started_at_ms": T0 - 60_000,
        "engine": "vllm",
        "url": "http://127.0.0.1:1",
        "region": "eu",
        "pools": [POOL],
    }
    return EndpointRow(**(fields | changes))


def register(
    at_ms: int, *, boot: int = 0, running: float | None = 3.0, reachable: bool = True
) -> RankRegister:
    reading = Reading() if running is None else Reading(value=running, quality="fresh", age_ms=0.0)
    return register_of(
        Telemetry(
            instance="i-1",
            boot=f"b{boot}",
            boot_started_at_ms=T0 - 60_000 + boot,
            engine="vllm",
            region="eu",
            pools=[POOL],
            at_ms=at_ms,
            reachable=reachable,
            gauges=EngineGauges(requests_running=reading),
        )
    )


def value(*registers: RankRegister, rings: dict[str, Rings] | None = None) -> Live:
    total = Total(mark_ms=T0, rings=rings or {}, ranks=dict(enumerate(registers)))
    return Live(State(closed=total))


def rings(attempts: int) -> Rings:
    class Ended:
        at_ms = T0
        cause = "ok"
        within_slo = True
        ttft_ms = 50.0
        tpot_ms = None
        queue_ms = None
        output_tokens = 1
        wasted_tokens = None

    found = Rings()
    for _ in range(attempts):
        slots: dict = {}
        count_outcome(slots, Ended())
        add_slots(found, slots, T0)
    return found


@pytest.mark.parametrize(
    ("row", "seen", "state"),
    [
        (endpoint(), value(register(T0 - 500)), "ready"),
        (endpoint(), value(register(T0 - 4_000)), "degraded"),
        (endpoint(), value(register(T0 - 9_000)), "unknown"),
        (endpoint(), None, "unknown"),
        (endpoint(as_of_ms=T0 - 5_000), value(register(T0 - 500, reachable=False)), "unreachable"),
        (endpoint(reachable=False), value(register(T0 - 500)), "unreachable"),
        (endpoint(reachable=False, as_of_ms=T0 - 5_000), value(register(T0 - 500)), "ready"),
        (endpoint(draining=True), value(register(T0)), "draining"),
        (endpoint(boot="b9", boot_started_at_ms=T0), value(register(T0)), "unknown"),
        (endpoint(), value(register(T0), register(T0 - 4_000)), "degraded"),
    ],
)
def test_state(row: EndpointRow, seen: Live | None, state: str) -> None:
    assert instance_row(row, seen, STAMP).state == state


def test_only_the_current_boot_counts_and_a_boot_that_nobody_named() -> None:
    both = {"b0": rings(1), "b1": rings(2), "": rings(4)}
    row = instance_row(endpoint(), value(register(T0, boot=1), rings=both), STAMP)
    assert (row.boot, row.windows[0].attempts) == ("b1", 6)
    assert (row.epoch, row.version, row.as_of_ms) == (7, 3, T0)
    assert instance_row(endpoint(), None, STAMP).gauges.requests_running.value is None


def member(at_ms: int, running: float | None = 3.0, **changes: Any) -> Any:
    return instance_row(endpoint(**changes), value(register(at_ms, running=running)), STAMP)


def test_a_region_sums_what_is_known_of_those_that_serve() -> None:
    members = members_of(
        [
            member(T0 - 100),
            member(T0 - 4_000, instance="i-2"),
            member(T0 - 100, None, instance="i-3"),
            member(T0 - 60_000, instance="i-4"),
        ]
    )
    row = region_row("eu", POOL, members, value(rings={"": rings(5)}), Grants(100.0, 60.0, 70.0), STAMP)
    assert (row.ready_endpoints, row.known_endpoints) == (2, 4)
    assert (row.requests_running.value, row.requests_running.quality) == (6.0, "stale")
    assert row.windows[0].attempts == 5
    assert (row.cap_work_tokens.value, row.headroom_work_tokens.value) == (100.0, 30.0)


def test_unknown_where_nothing_is_known_and_no_cap_is_no_figure() -> None:
    members = members_of([member(T0 - 60_000)])
    row = region_row("eu", POOL, members, None, Grants(None, 0.0, 0.0), STAMP)
    assert (row.ready_endpoints, row.known_endpoints) == (0, 1)
    assert row.requests_running.value is None
    assert row.cap_work_tokens.quality == "unknown"
    assert row.leased_work_tokens.quality == "unknown"


def test_a_silent_instance_leaves_only_when_the_registry_is_silent_too() -> None:
    silent = value(register(T0 - 90_000))
    assert not has_left(heard_at_ms(endpoint(), silent), T0)
    assert has_left(heard_at_ms(endpoint(as_of_ms=T0 - 90_000), silent), T0)
    assert not has_left(heard_at_ms(endpoint(as_of_ms=T0 - 90_000), value(register(T0))), T0)


def test_rows_are_what_the_contract_says() -> None:
    row = instance_row(endpoint(), value(register(T0), rings={"b0": rings(1)}), STAMP)
    read = InstanceRow.model_validate_json(encode(row))
    assert (read.instance, read.state, read.windows[0].attempts) == ("i-1", "ready", 1)
    assert read.gauges.requests_running.value == 3.0
    region = region_row("eu", POOL, members_of([row]), None, Grants(1.0, 2.0, 3.0), STAMP)
    assert RegionRow.model_validate_json(encode(region)).ready_endpoints == 1
