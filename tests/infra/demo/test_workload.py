"""The demo's workload: real engines get what fits their context."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.demo.workload import DEFAULT_RATE_RPS, LIMITS, load_workload
from infra.layout import EngineKind, Layout
from infra.llamacpp.tiny_model import CONTEXT_TOKENS
from sim.workloads.traces import BLOCK_TOKENS

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.0000000,{prompt},{answer}\n"
    for second, (prompt, answer) in enumerate([(100, 10), (2048, 256), (9000, 20), (50, 4000)])
)


def plan(engine: EngineKind, tmp_path: Path):
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    layout = Layout(tmp_path, {}, engine=engine)
    return load_workload(layout, trace=trace, duration_s=10, rate_rps=None, seed=0)


def test_lengths_are_cut_to_what_llamacpp_takes_and_said(tmp_path: Path) -> None:
    cut, whole = plan("llama.cpp", tmp_path), plan("emulated", tmp_path)
    lengths = [(spec.input_tokens, spec.output_tokens) for spec in cut.plan[:4]]
    assert lengths == [(100, 10), (2048, 256), (2048, 20), (50, 256)]
    assert [spec.at_ms for spec in cut.plan] == [spec.at_ms for spec in whole.plan]
    assert whole.limits is None
    assert str(cut.limits) == "prompts cut to 2,048 tokens and answers to 256"
    assert max(spec.input_tokens for spec in whole.plan) == 9000


@pytest.mark.parametrize("seed", range(3))
def test_the_generators_plan_fits_the_context(tmp_path: Path, seed: int) -> None:
    layout = Layout(tmp_path, {}, engine="llama.cpp")
    made = load_workload(layout, trace=None, duration_s=60, rate_rps=None, seed=seed)
    assert len(made.plan) > 0.5 * 60 * DEFAULT_RATE_RPS["llama.cpp"]
    assert made.limits == LIMITS["llama.cpp"]
    for spec in made.plan:
        assert spec.input_tokens + 1 + spec.output_tokens <= CONTEXT_TOKENS
        assert len(spec.prefix_blocks) <= spec.input_tokens // BLOCK_TOKENS
    assert any(spec.prefix_blocks for spec in made.plan)
