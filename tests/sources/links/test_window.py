"""What attempts say of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.network import LinkProbe
from sources.links.config import LinkConfig
from sources.links.window import WINDOW, Attempt, LinkWindow

NOW_MS = 1_795_981_800_000
LINK = LinkConfig(from_region="eu", to_region="us", urls=["http://a:1"], interval_ms=1000, timeout_s=1)


def window(attempts: dict[str, list[float | None]], link: LinkConfig = LINK) -> LinkWindow:
    """Routers and their round trips, one each second, the last one now; None: no answer, 0: no time taken."""
    made = LinkWindow(link)
    for url, rtts in attempts.items():
        for age, rtt in zip(reversed(range(len(rtts))), rtts, strict=True):
            made.note(url, Attempt(NOW_MS - age * 1000, rtt is not None, rtt or None))
    return made


def said(attempts: dict[str, list[float | None]], after_ms: int = 0) -> LinkProbe:
    return window(attempts).probe(NOW_MS + after_ms)


def test_the_round_trip_is_the_least_of_the_last_few() -> None:
    probe = said({"a": [9.0, 30.0, 12.0, 50.0, 31.0, 40.0]})
    assert (probe.rtt_ms.value, probe.rtt_ms.quality, probe.rtt_ms.age_ms) == (12.0, "fresh", 0.0)
    assert (probe.from_region, probe.to_region, probe.at_ms) == ("eu", "us", NOW_MS)
    assert probe.valid_for_ms == 5_000.0, "2.5 intervals of the probes, timeouts included"


def test_the_nearest_router_tells_how_far_the_region_is() -> None:
    assert said({"a": [20.0], "b": [15.0], "c": [None]}).rtt_ms.value == 15.0


def test_a_first_answer_that_had_to_connect_is_an_answer_without_a_time() -> None:
    probe = said({"a": [0.0] * 5})
    assert probe.rtt_ms.quality == "unknown"
    assert probe.loss_ratio.value == 0.0


def test_loss_is_counted_over_the_window_and_unknown_before_it_means_something() -> None:
    assert said({"a": [1.0, None, 1.0, 1.0]}).loss_ratio.value is None
    assert said({"a": [1.0, None, 1.0, 1.0, None]}).loss_ratio.value == pytest.approx(0.4)
    assert said({"a": [None] * 30 + [1.0] * WINDOW}).loss_ratio.value == 0.0
    assert said({}).loss_ratio.value is None


def test_a_silent_router_among_others_is_no_loss_of_the_link() -> None:
    assert said({"a": [1.0] * 10, "b": [None] * 10}).loss_ratio.value == 0.0
    assert said({"a": [None] * 10, "b": [None] * 10}).loss_ratio.value == 1.0


def test_readings_age_into_stale_and_unknown() -> None:
    attempts: dict[str, list[float | None]] = {"a": [7.0] * 5}
    assert said(attempts, 5_000).rtt_ms.quality == "fresh"
    stale = said(attempts, 20_000)
    assert (stale.rtt_ms.value, stale.rtt_ms.quality, stale.rtt_ms.age_ms) == (7.0, "stale", 20_000.0)
    assert stale.loss_ratio.quality == "stale"
    gone = said(attempts, 41_000)
    assert (gone.rtt_ms.value, gone.loss_ratio.value) == (None, None)


def test_a_fresh_router_counts_before_a_nearer_stale_one() -> None:
    made = window({"a": [5.0] * 5})
    made.note("b", Attempt(NOW_MS + 20_000, True, 9.0))
    assert made.probe(NOW_MS + 20_000).rtt_ms.value == 9.0


def test_routers_that_are_not_probed_any_more_are_forgotten() -> None:
    made = window({"a": [5.0] * 5, "b": [1.0] * 5})
    made.keep(frozenset({"a"}))
    assert made.probe(NOW_MS).rtt_ms.value == 5.0


def test_bandwidth_and_price_are_what_the_operator_says_or_unknown() -> None:
    probe = said({})
    assert (probe.bandwidth_mbit_per_s.quality, probe.egress_usd_per_gib) == ("unknown", None)
    told = LINK.model_copy(update={"bandwidth_mbit_per_s": 10_000.0, "egress_usd_per_gib": 0.02})
    probe = window({}, told).probe(NOW_MS)
    assert (probe.bandwidth_mbit_per_s.value, probe.egress_usd_per_gib) == (10_000.0, 0.02)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 60_000), st.booleans(), st.none() | st.floats(0.01, 1e4)
        )
    )
)
def test_whatever_is_noted_makes_a_valid_event(noted: list[tuple[str, int, bool, float | None]]) -> None:
    made = LinkWindow(LINK)
    for url, age_ms, answered, rtt_ms in noted:
        made.note(url, Attempt(NOW_MS - age_ms, answered, rtt_ms if answered else None))
    probe = made.probe(NOW_MS)
    assert LinkProbe.model_validate(probe.model_dump()) == probe
    if probe.rtt_ms.value is not None:
        assert probe.rtt_ms.value in {rtt for _, _, _, rtt in noted}
    assert probe.loss_ratio.value is None or 0.0 <= probe.loss_ratio.value <= 1.0


def test_a_link_leads_to_another_region() -> None:
    with pytest.raises(ValueError, match="to itself"):
        LinkConfig(from_region="eu", to_region="eu")
    with pytest.raises(ValueError, match="pattern"):
        LinkConfig(from_region="eu", to_region="us", urls=["http://user:pass@a"])
