"""The static cap: what ready endpoints carry, held while nothing is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minds.slomax.caps import cap_terms, class_shares, static_cap
from schemas.policy import Cap, PolicyRow, ServiceClass
from schemas.tables import InstanceState

T0 = 1_796_000_000_000
STATES: tuple[InstanceState, ...] = ("ready", "degraded", "draining", "unreachable", "unknown")


def policy(**changes: object) -> PolicyRow:
    return PolicyRow(as_of_ms=T0, valid_for_ms=0.0, epoch=1, version=1, **changes)  # type: ignore[arg-type]


def test_without_a_policy_there_is_no_cap_and_one_class() -> None:
    assert static_cap(cap_terms(None, "m@v1").work_tokens_per_endpoint, ["ready"], 5.0) is None
    assert class_shares(None) == {"default": 1.0}


def test_a_pools_own_cap_goes_before_that_for_all() -> None:
    row = policy(
        caps=[Cap(pool="*", work_tokens_per_endpoint=10.0), Cap(pool="m@v1", work_tokens_per_endpoint=20.0)],
        classes=[ServiceClass(name="chat", share=0.7), ServiceClass(name="batch", share=0.3)],
    )
    assert cap_terms(row, "m@v1").work_tokens_per_endpoint == 20.0
    assert cap_terms(row, "other@v1").work_tokens_per_endpoint == 10.0
    assert class_shares(row) == {"chat": 0.7, "batch": 0.3}


def test_readiness() -> None:
    assert static_cap(10.0, ["ready", "degraded", "draining", "unreachable"], 99.0) == 20.0
    assert static_cap(10.0, [], 40.0) == 0.0


def test_the_last_cap_holds_while_nothing_is_known() -> None:
    assert static_cap(10.0, ["unknown", "unknown"], 20.0) == 20.0
    assert static_cap(10.0, ["ready", "unknown"], 20.0) == 20.0
    assert static_cap(10.0, ["ready", "unknown"], 50.0) == 20.0
    assert static_cap(10.0, ["ready", "unknown"], None) == 10.0


@given(
    st.lists(st.sampled_from(STATES), max_size=12),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.floats(0, 1e9)),
)
def test_never_beyond_what_all_could_carry(
    states: list[InstanceState], per: float, last: float | None
) -> None:
    cap = static_cap(per, states, last)
    assert cap is not None
    serving = sum(s in ("ready", "degraded") for s in states)
    assert per * serving <= cap <= per * (serving + states.count("unknown")) * (1 + 1e-9)
