"""Generated streams: in order, unique, with the asked rate, and no sharing between windows."""

from __future__ import annotations

from sim.des.generated import CONVERSATION, CONVERSATION_SHAPE, generated_stream
from sim.workloads.plan import IntentSpec, PlanShape


def test_a_stream_is_in_order_and_its_windows_share_nothing_but_the_first_block() -> None:
    shape = PlanShape(classes=(CONVERSATION,), entry_shares={"a": 1.0}, residency_shares={})

    def stream() -> list[IntentSpec]:
        return list(
            generated_stream(
                rate_rps=10.0,
                duration_ms=90_000.0,
                seed=4,
                shape=shape,
                generator=CONVERSATION_SHAPE,
                window_ms=40_000.0,
            )
        )

    specs = stream()
    assert specs == stream()
    times_ms = [spec.at_ms for spec in specs]
    assert times_ms == sorted(times_ms)
    assert times_ms[0] >= 0
    assert times_ms[-1] < 90_000.0
    assert 750 < len(specs) < 1_050
    assert len({spec.intent_id for spec in specs}) == len(specs)
    windows: dict[int, set[int]] = {}
    for spec in specs:
        windows.setdefault(int(spec.at_ms // 40_000.0), set()).update(spec.prefix_blocks)
    assert set.intersection(*windows.values()) == {0}
    mean_tokens = sum(spec.input_tokens for spec in specs) / len(specs)
    assert 10_000 < mean_tokens < 14_500  # 12,035 as published
