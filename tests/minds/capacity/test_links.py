"""Links of a region: the newest of each figure, in any order, and unknown where nobody says it any more."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.links import LINK_VALID_MS, LONGEST_VALID_MS, LOOK_BACK_MS, Links
from schemas.network import LinkProbe
from schemas.readings import UNKNOWN, Reading

T0 = 1_796_000_000_000


def fresh(value: float | None, age_ms: float = 0.0) -> Reading:
    return UNKNOWN if value is None else Reading(value=value, quality="fresh", age_ms=age_ms)


def probe(
    at_ms: int = T0,
    *,
    to: str = "us",
    rtt: float | None = 80.0,
    loss: float | None = 0.0,
    bandwidth: float | None = None,
    price: float | None = None,
    age_ms: float = 0.0,
    valid_for_ms: float | None = None,
) -> LinkProbe:
    return LinkProbe(
        from_region="eu",
        to_region=to,
        at_ms=at_ms,
        rtt_ms=fresh(rtt, age_ms),
        loss_ratio=fresh(loss),
        bandwidth_mbit_per_s=fresh(bandwidth),
        egress_usd_per_gib=price,
        valid_for_ms=valid_for_ms,
    )


def links(*probes: LinkProbe) -> Links:
    made = Links()
    for one in probes:
        made.take(one)
    return made


def only(made: Links, now_ms: int = T0) -> Any:
    (link,) = made.links_of("eu", (), now_ms)
    return link


def test_a_link_shows_what_was_measured_and_what_operators_said() -> None:
    link = only(links(probe(bandwidth=10_000.0, price=0.02, age_ms=400.0)), T0 + 100)
    assert (link.to_region, link.rtt_ms.value, link.loss_ratio.value) == ("us", 80.0, 0.0)
    assert (link.bandwidth_mbit_per_s.value, link.egress_usd_per_gib.value) == (10_000.0, 0.02)
    assert (link.rtt_ms.age_ms, link.egress_usd_per_gib.age_ms) == (500.0, 100.0)


def test_every_other_region_is_listed_and_unknown_where_nothing_was_heard() -> None:
    found = links(probe(to="us")).links_of("eu", {"eu", "ap"}, T0)
    assert [link.to_region for link in found] == ["ap", "us"]
    assert found[0].rtt_ms.quality == found[0].egress_usd_per_gib.quality == "unknown"
    assert links().links_of("eu", (), T0) == []


def test_an_agent_that_knows_less_takes_nothing_away() -> None:
    made = links(probe(T0, bandwidth=1_000.0, price=0.05), probe(T0 + 500, rtt=None, loss=0.5))
    link = only(made, T0 + 500)
    assert (link.rtt_ms.value, link.rtt_ms.age_ms, link.loss_ratio.value) == (80.0, 500.0, 0.5)
    assert (link.bandwidth_mbit_per_s.value, link.egress_usd_per_gib.value) == (1_000.0, 0.05)


@pytest.mark.parametrize(("valid_for_ms", "bound_ms"), [(None, LINK_VALID_MS), (1e8, LONGEST_VALID_MS)])
def test_figures_age_to_stale_and_unknown(valid_for_ms: float | None, bound_ms: float) -> None:
    made = links(probe(price=0.05, valid_for_ms=valid_for_ms))
    for age_ms, quality in ((bound_ms, "fresh"), (bound_ms + 1, "stale"), (2 * bound_ms + 1, "unknown")):
        link = only(made, T0 + int(age_ms))
        assert (link.rtt_ms.quality, link.egress_usd_per_gib.quality) == (quality, quality)


def test_what_cant_be_true_is_named_and_not_used() -> None:
    made = links(probe())
    assert made.take(probe(T0 + 1, rtt=-3.0)) == "rtt_ms from eu to us is -3."
    assert made.take(probe(T0 + 1, loss=1.5)) == "loss_ratio from eu to us is 1.5."
    assert made.take(probe(to="eu")) == "A link leads from eu to itself."
    assert made.take(probe(T0 + 2)) is None
    assert [(one.to_region, one.rtt_ms.value) for one in made.links_of("eu", (), T0)] == [("us", 80.0)]


def test_what_says_nothing_any_more_is_forgotten() -> None:
    made = links(probe(), probe(T0 + 10_000, to="ap"))
    made.forget_old(T0 + int(LOOK_BACK_MS) + 1)
    assert [link.to_region for link in made.links_of("eu", (), T0)] == ["ap"]
    made.forget_old(T0 + 2 * int(LOOK_BACK_MS))
    assert made.links_of("eu", (), T0) == []


probes = st.builds(
    lambda at, to, rtt, price, age: probe(T0 + at, to=to, rtt=rtt, price=price, age_ms=age),
    st.integers(0, 3_000),
    st.sampled_from(["us", "ap"]),
    st.one_of(st.none(), st.integers(1, 3).map(float)),
    st.one_of(st.none(), st.sampled_from([0.01, 0.02])),
    st.sampled_from([0.0, 500.0]),
)


@given(st.lists(probes, max_size=15), st.integers(0, 2**20))
def test_order_and_repetition_do_not_matter(drawn: list[LinkProbe], seed: int) -> None:
    again = drawn + drawn[: len(drawn) // 2]
    random.Random(seed).shuffle(again)
    now_ms = T0 + 4_000
    assert links(*again).links_of("eu", (), now_ms) == links(*drawn).links_of("eu", (), now_ms)
