"""The hard filter and the order of regions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.fleetmind.eligibility import (
    NO_READY_ENDPOINT,
    RESIDENCY_FORBIDS,
    Site,
    excluded_by,
    narrow_to_pins,
    nothing_allowed,
    pool_of,
    tenant_refusal,
)
from minds.fleetmind.regions import order_regions, region_loads
from minds.fleetmind.suspects import LONGEST_PAUSE_MS, Suspects
from minds.policy import PUBLIC, CompiledPolicy, problems_of
from schemas.policy import PolicyRow

REGIONS = ("eu-west", "us-east", "ap-south")


def policy_row(**fields: Any) -> PolicyRow:
    return PolicyRow(as_of_ms=1_700_000_000_000, valid_for_ms=1000.0, epoch=1, version=1, **fields)


def policy(**fields: Any) -> CompiledPolicy:
    return CompiledPolicy(policy_row(**fields))


@given(
    allowed=st.lists(st.sampled_from(REGIONS), min_size=1, unique=True),
    sites=st.lists(st.tuples(st.sampled_from(REGIONS), st.booleans()), max_size=12),
    asked=st.sampled_from(["law", "unheard-of", None]),
)
def test_residency_is_never_broken(
    allowed: list[str], sites: list[tuple[str, bool]], asked: str | None
) -> None:
    compiled = policy(residencies=[{"name": "law", "allowed_regions": allowed}])
    regions = compiled.allowed_regions(asked)
    for number, (region, ready) in enumerate(sites):
        site = Site(f"i{number}", region, None if ready else "not ready")
        passed = excluded_by(site, compiled, regions) is None
        lawful = asked is None or (asked == "law" and region in allowed)
        assert passed == (lawful and ready)


def test_each_exclusion_has_its_reason_and_law_comes_first() -> None:
    compiled = policy(
        operations=[
            {"kind": "region", "name": "us-east", "action": "drain", "reason": "works"},
            {"kind": "instance", "name": "x", "action": "exclude", "reason": "sick"},
        ]
    )
    assert "residency" in (excluded_by(Site("x", "us-east"), compiled, frozenset()) or "")
    assert "works" in (excluded_by(Site("y", "us-east"), compiled, None) or "")
    assert "sick" in (excluded_by(Site("x", "eu-west"), compiled, None) or "")
    assert excluded_by(Site("y", "eu-west", "draining"), compiled, None) == "draining"
    assert excluded_by(Site("y", "eu-west"), compiled, None) is None


def test_what_is_missing_where_nothing_is_left() -> None:
    sites = [Site("a", "eu-west", "down")]
    assert nothing_allowed(sites, frozenset({"us-east"})) == RESIDENCY_FORBIDS
    assert nothing_allowed(sites, frozenset({"eu-west"})) == NO_READY_ENDPOINT
    assert nothing_allowed([], None) == NO_READY_ENDPOINT


def test_pins_narrow_but_only_among_what_can_serve() -> None:
    compiled = policy(operations=[{"kind": "region", "name": "us-east", "action": "pin"}])
    both = [Site("a", "eu-west"), Site("b", "us-east")]
    assert set(narrow_to_pins(both, compiled)) == {"a"}
    assert narrow_to_pins(both[:1], compiled) == {}


@pytest.mark.parametrize(
    ("model", "pool"),
    [("m", "m@v10"), ("m@v9", "m@v9"), ("m@v11", "m@v11"), ("n", "n@1"), ("x", None), ("m@v1", None)],
)
def test_a_bare_model_is_its_newest_version_that_is_ready(model: str, pool: str | None) -> None:
    ready = {"m@v9": 4, "m@v10": 1, "m@v11": 0, "n@1": 0}
    assert pool_of(model, ready) == pool


def test_tenants() -> None:
    digest = "0" * 64
    compiled = policy(
        classes=[{"name": "a"}, {"name": "b"}],
        tenants=[{"tenant": "t", "key_sha256": digest, "classes": ["a"], "pools": ["m@1"]}],
        operations=[{"kind": "tenant", "name": "public", "action": "exclude", "reason": "abuse"}],
    )
    (tenant,) = compiled.tenants
    assert tenant_refusal(tenant, "a", "m@1", compiled) is None
    assert "class" in (tenant_refusal(tenant, "b", "m@1", compiled) or "")
    assert "pool" in (tenant_refusal(tenant, "a", "m@2", compiled) or "")
    assert "abuse" in (tenant_refusal(PUBLIC, "a", "m@1", compiled) or "")
    assert compiled.tenant_of(None) is None
    assert CompiledPolicy(None).tenant_of(None) is PUBLIC


def test_a_fresh_install_has_one_class_and_no_caps() -> None:
    compiled = CompiledPolicy(None)
    assert list(compiled.classes) == [compiled.default_class] == ["default"]
    assert not compiled.capped("m@1")
    assert policy(caps=[{"work_tokens_per_endpoint": 5.0}]).capped("m@1")
    own = policy(caps=[{"work_tokens_per_endpoint": 5.0}, {"pool": "m@1"}])
    assert (own.capped("m@1"), own.capped("m@2")) == (False, True)


def test_contradictions_are_told_by_field() -> None:
    row = policy_row(
        classes=[{"name": "a", "share": 0.9}, {"name": "a", "share": 0.9}],
        default_class="z",
        tenants=[{"tenant": "t", "key_sha256": "0" * 64, "classes": ["q"], "residency": "moon"}],
    )
    text = " ".join(problems_of(row))
    for part in (
        "class 'a' is there twice",
        "'z'",
        "at most 1",
        "tenants[0].classes",
        "tenants[0].residency",
    ):
        assert part in text
    assert problems_of(policy_row()) == []


def test_regions_go_by_load_and_the_entry_region_wins_near_ties() -> None:
    loads = region_loads(["a", "a", "b", "c"], [2.0, 4.0, 3.1, 9.0])
    assert loads == {"a": 3.0, "b": 3.1, "c": 9.0}
    assert order_regions(loads, "b", 1) == ["b", "a", "c"]
    assert order_regions(loads, "c", 1)[2] == "c"
    first = Counter(order_regions(loads, "edge", seed)[0] for seed in range(200))
    assert set(first) == {"a", "b"}, "an entry without engines: routers spread over near-ties"
    assert order_regions({}, "a", 1) == []


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1000), min_size=1), st.integers(0, 2**53))
def test_every_region_is_in_the_order_once(loads: dict[str, float], seed: int) -> None:
    order = order_regions(loads, "a", seed)
    assert sorted(order) == sorted(loads)
    assert loads[order[0]] <= min(loads.values()) * 1.1 + 0.5
    assert [loads[name] for name in order[1:]] == sorted(loads[name] for name in order[1:])


def test_suspects_pause_longer_each_time_and_end_with_a_success() -> None:
    suspects = Suspects()
    suspects.failed("i", "b", 0.0)
    assert suspects.paused("i", "b", 400.0)
    assert not suspects.paused("i", "b", 500.0)
    assert not suspects.paused("i", "b2", 0.0)
    for _ in range(20):
        suspects.failed("i", "b", 0.0)
    assert suspects.paused("i", "b", LONGEST_PAUSE_MS - 1)
    assert not suspects.paused("i", "b", LONGEST_PAUSE_MS)
    suspects.worked("i", "b")
    assert not suspects.paused("i", "b", 0.0)
