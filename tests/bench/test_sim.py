"""The simulator's benchmark counts what it says; how fast it is depends on the machine and isn't tested."""

from __future__ import annotations

from bench.sim import conversation, eight_instances, thousand_instances


def test_the_benchmark_runs_without_a_trace() -> None:
    specs, source = conversation(None, duration_ms=60_000.0)
    assert source == "generator"
    assert 200 < len(specs) < 500
    made = eight_instances(specs, "lor")
    assert made["requests"] == len(specs)
    assert made["steps"] > 10 * len(specs)
    assert made["steps_per_cpu_s"] == made["steps"] / made["cpu_s"]


def test_the_thousand_instances_are_extrapolated_from_a_piece() -> None:
    made = thousand_instances(0.5, warmup_s=0.5)
    assert made["hour_steps"] == made["steps"] * 7_200
    assert made["steps"] > 100
