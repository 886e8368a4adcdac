"""GPU health: the newest sample of each GPU wins, the worst GPU counts, silence is unknown."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.gpu_health import GPU_VALID_MS, XID_HOLD_MS, GpuTable
from schemas.gpus import GpuSample
from schemas.readings import Reading

T0 = 1_796_000_000_000


def sample(gpu: str = "GPU-0", at_ms: int = T0, **said: Any) -> GpuSample:
    return GpuSample(**({"host": "h", "gpu": gpu, "index": 0, "at_ms": at_ms, "state": "ok"} | said))


def table(*samples: GpuSample) -> GpuTable:
    made = GpuTable()
    for one in samples:
        made.take(one)
    return made


def errors(count: float) -> Reading:
    return Reading(value=count, quality="fresh", age_ms=0.0)


def test_well_gpus_make_a_well_instance_as_old_as_the_oldest_sample() -> None:
    made = table(sample("GPU-0", T0 + 700), sample("GPU-1", T0))
    for health in (made.health_of("h", (), T0 + 1_000), made.health_of(None, ("GPU-0", "GPU-1"), T0 + 1_000)):
        assert (health.state, health.quality, health.age_ms, health.reasons) == ("ok", "fresh", 1_000.0, [])


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        ({"state": "lost"}, "lost", "GPU-0: it fell off the bus or needs a reset."),
        ({"state": "silent"}, "degraded", "GPU-0: its driver gave no answer in time."),
        (
            {"ecc_uncorrected_total": errors(2)},
            "degraded",
            "GPU-0: 2 uncorrected ECC errors since the driver was loaded.",
        ),
        ({"throttle_reasons": ["hw-thermal"]}, "degraded", "GPU-0: its clocks are held down: hw-thermal."),
        ({"xid_last": 79, "xid_last_at_ms": T0}, "degraded", "GPU-0: XID 79."),
        ({"throttle_reasons": ["idle", "power-cap"]}, "ok", None),
        ({"ecc_uncorrected_total": errors(0)}, "ok", None),
        ({"xid_last": 31, "xid_last_at_ms": T0}, "ok", None),
    ],
)
def test_what_counts_against_a_gpu(said: dict[str, Any], state: str, reason: str | None) -> None:
    health = table(sample(**said)).health_of(None, ("GPU-0",), T0)
    assert health.state == state
    assert health.reasons == ([] if reason is None else [reason])


def test_an_xid_is_over_when_none_came_for_long() -> None:
    late = T0 + XID_HOLD_MS
    health = table(sample(at_ms=late, xid_last=79, xid_last_at_ms=T0)).health_of("h", (), late)
    assert (health.state, health.reasons) == ("ok", [])


def test_unknown_without_a_tie_and_without_a_sample() -> None:
    made = table(sample())
    for host, gpus in ((None, ()), ("other", ()), ("h", ("GPU-9",))):
        assert made.health_of(host, gpus, T0).state == "unknown"
    both = made.health_of("h", ("GPU-0", "GPU-9"), T0)
    assert (both.state, both.quality, both.reasons) == (
        "unknown",
        "unknown",
        ["GPU-9: nothing was heard of it."],
    )


def test_a_worse_gpu_outweighs_one_that_is_unknown() -> None:
    made = table(sample("GPU-0", state="lost"))
    assert made.health_of("h", ("GPU-0", "GPU-9"), T0).state == "lost"


def test_one_lost_gpu_of_a_host_may_be_somebody_elses() -> None:
    made = table(sample("GPU-0", state="lost"), sample("GPU-1"))
    assert made.health_of("h", (), T0).state == "degraded"
    assert made.health_of("h", ("GPU-0",), T0).state == "lost"
    assert made.health_of("h", ("GPU-1",), T0).state == "ok"
    assert table(sample("GPU-0", state="lost")).health_of("h", (), T0).state == "lost"


def test_samples_age_to_stale_and_unknown() -> None:
    made = table(sample())
    bound_ms = int(GPU_VALID_MS)
    for age_ms, state, quality in (
        (bound_ms, "ok", "fresh"),
        (bound_ms + 1, "ok", "stale"),
        (2 * bound_ms + 1, "unknown", "unknown"),
    ):
        health = made.health_of("h", (), T0 + age_ms)
        assert (health.state, health.quality) == (state, quality)
    slow = table(sample(valid_for_ms=60_000.0))
    assert slow.health_of("h", (), T0 + 60_000).quality == "fresh"


def test_a_mig_device_is_as_well_as_the_gpu_that_it_is_of() -> None:
    part = sample("MIG-a", parent="GPU-0")
    assert table(part, sample("GPU-0")).health_of(None, ("MIG-a",), T0).state == "ok"
    # A lost GPU's parts are not told of any more; the whole is.
    late = T0 + 60_000
    made = table(part, sample("GPU-0", late, state="lost"))
    assert made.health_of(None, ("MIG-a",), late).state == "lost"


def test_a_gpu_that_moved_leaves_its_old_host_and_a_silent_one_is_forgotten() -> None:
    made = table(sample(), sample(at_ms=T0 + 1_000, host="h2"))
    assert made.health_of("h", (), T0 + 1_000).state == "unknown"
    assert made.health_of("h2", (), T0 + 1_000).state == "ok"
    made.forget_old(T0 + 1_000, {"h2"})
    assert made.health_of("h2", (), T0 + 1_000).state == "ok"
    made.forget_old(T0 + 3_600_000)
    assert made.health_of("h2", (), T0 + 1_000).state == "unknown"


samples = st.builds(
    lambda gpu, at, host, state: sample(gpu, T0 + at, host=host, state=state),
    st.sampled_from(["GPU-0", "GPU-1"]),
    st.integers(0, 5),
    st.sampled_from(["h", "h2"]),
    st.sampled_from(["ok", "lost", "silent"]),
)


@given(st.lists(samples, max_size=15), st.integers(0, 2**20))
def test_order_and_repetition_do_not_matter(drawn: list[GpuSample], seed: int) -> None:
    again = drawn + drawn[: len(drawn) // 2]
    random.Random(seed).shuffle(again)
    one, other = table(*drawn), table(*again)
    for host, gpus in (("h", ()), ("h2", ()), (None, ("GPU-0",)), (None, ("GPU-0", "GPU-1"))):
        assert one.health_of(host, gpus, T0 + 5) == other.health_of(host, gpus, T0 + 5)
