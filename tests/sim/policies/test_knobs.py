"""Knobs: ranges, unknown names, and that every row of the peers' table is there."""

from __future__ import annotations

from random import Random

import pytest

from sim.experiments.files_io import KINDS
from sim.policies.knobs import Knob, named

PEERS = {
    "balancer": "rr random lor p2c prefix_hash sglang gie dynamo lmetric lpwl mooncake aibrix smg",
    "admission": "saturation smg_classes gradient2 vegas envoy_adaptive static_cap aimd client_throttling",
    "region": "gorgo skywalker waterfall envoy_locality sageserve",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_the_table_is_there_and_its_defaults_are_in_range(kind: str) -> None:
    entries = KINDS[kind]
    assert set(PEERS[kind].split()) <= set(entries)
    rng = Random(0)
    for entry in entries.values():
        entry.factory({})(0)
        for knob in entry.knobs:
            assert knob.checked(knob.default) == knob.default
            assert all(knob.checked(knob.draw(rng)) for _ in range(20) if knob.low > 0)


def test_errors_say_what_is_known() -> None:
    with pytest.raises(ValueError, match=r"no balancer policy 'lmetrik'. Did you mean 'lmetric'\?"):
        named(KINDS["balancer"], "balancer", "lmetrik")
    with pytest.raises(ValueError, match="has no knob 'weight'; it has queue_weight"):
        KINDS["balancer"]["gie"].factory({"weight": 1})
    with pytest.raises(ValueError, match="it has none"):
        KINDS["balancer"]["rr"].factory({"weight": 1})
    with pytest.raises(ValueError, match="whole number"):
        KINDS["balancer"]["prefix_hash"].factory({"blocks": 2.5})
    with pytest.raises(ValueError, match="must lie in"):
        Knob("k", 1, 0, 2).checked(float("nan"))
