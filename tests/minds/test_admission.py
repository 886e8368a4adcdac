"""The queue before admission."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minds.slomax.admission import (
    DEADLINE_UNREACHABLE,
    NO_LEASE_HEADROOM,
    AdmissionQueue,
    DrainRate,
    ServiceTimes,
    Waiting,
    retry_after_s,
    wait_ms,
)


def waiting(
    deadline: float, work: float = 1.0, cls: str = "a", give_up: float = 1e9, regions: str = "x"
) -> Waiting:
    return Waiting(cls, "p@1", tuple(regions), work, 0.0, deadline, give_up)


def pump(
    queue: AdmissionQueue[str], room: dict[str, float], now_ms: float = 0.0, typical: float | None = None
):  # type: ignore[no-untyped-def]
    def admit(item: Waiting, region: str) -> str | None:
        if room.get(region, 0.0) < item.work_tokens:
            return None
        room[region] -= item.work_tokens
        return region

    return queue.pump(now_ms, admit, lambda name: typical)


@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(0.1, 10)), max_size=30), st.floats(0, 60))
def test_earliest_deadline_first_and_no_overtaking(items: list[tuple[float, float]], room: float) -> None:
    queue: AdmissionQueue[str] = AdmissionQueue()
    for deadline, work in items:
        assert queue.push(waiting(deadline, work))
    left = {"x": room}
    admitted, refused = pump(queue, left)
    assert not refused
    taken = [item.order for item, _ in admitted]
    assert taken == sorted(taken)
    assert left["x"] >= -1e-9
    still = sorted(queue, key=lambda item: item.order)
    if taken and still:
        assert taken[-1] < still[0].order
    if still:
        assert still[0].work_tokens > left["x"], "the first that waits does not fit"
    assert len(queue) + len(admitted) == len(items)


def test_a_full_region_does_not_hold_up_another() -> None:
    queue: AdmissionQueue[str] = AdmissionQueue()
    for deadline, regions in ((1e6, "x"), (2e6, "y"), (3e6, "xy")):
        queue.push(waiting(deadline, regions=regions))
    admitted, _ = pump(queue, {"y": 2.0})
    assert [(item.deadline_ms, region) for item, region in admitted] == [(2e6, "y"), (3e6, "y")]


def test_classes_are_bounded_and_separate() -> None:
    queue: AdmissionQueue[str] = AdmissionQueue(limit=2)
    assert queue.push(waiting(1e6))
    assert queue.push(waiting(1e6))
    assert not queue.push(waiting(1e6))
    assert queue.push(waiting(1e6, cls="b"))
    assert (queue.ahead("a", "p@1"), queue.ahead("b", "p@1"), queue.ahead("a", "q@1")) == (2.0, 1.0, 0.0)


def test_what_can_not_be_served_any_more_leaves_with_its_rule() -> None:
    queue: AdmissionQueue[str] = AdmissionQueue()
    soon, patient, weary = waiting(1000), waiting(9000), waiting(9000, give_up=400)
    for item in (soon, patient, weary):
        queue.push(item)
    _, refused = pump(queue, {}, now_ms=600, typical=500.0)
    assert {item.order: rule for item, rule in refused} == {
        soon.order: DEADLINE_UNREACHABLE,
        weary.order: NO_LEASE_HEADROOM,
    }
    assert list(queue) == [patient]
    queue.discard(patient)
    queue.discard(patient)
    assert len(queue) == 0


def test_rates_and_times_are_unknown_until_enough_is_seen() -> None:
    drain, times = DrainRate(span_ms=1000, at_least=3), ServiceTimes()
    assert drain.per_ms("a", "p@1", 0.0) is None
    assert times.typical_ms("a") is None
    for now in (0.0, 100.0, 200.0):
        drain.ended("a", "p@1", 10.0, now)
        times.observe("a", 50.0)
    assert drain.per_ms("a", "p@1", 300.0) == 0.1
    assert times.typical_ms("a") == 50.0
    assert drain.per_ms("a", "p@1", 1150.0) is None, "what is long ago says nothing"
    assert wait_ms(100.0, 0.1) == 1000.0
    assert wait_ms(100.0, None) is None
    assert [retry_after_s(value) for value in (None, 0.0, 1500.0, 1e9)] == [1, 1, 2, 30]
