"""What a run refuses to start with: one sentence, and no ledger left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sim.loadgen import LedgerError, run_load
from sim.workloads.plan import IntentSpec, plan_from_trace
from sim.workloads.traces import TraceRequest

(SPEC,) = plan_from_trace([TraceRequest(0.0, 5, 5)])
URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("plan", "routers", "speed", "words"),
    [
        ([SPEC], {}, 1.0, "No router is given for entry region"),
        ([SPEC], {SPEC.entry_region: []}, 1.0, "No router is given for entry region"),
        ([SPEC], {SPEC.entry_region: ["127.0.0.1:9"]}, 1.0, "is no http"),
        ([SPEC, SPEC], {SPEC.entry_region: [URL]}, 1.0, "same id"),
        ([SPEC], {SPEC.entry_region: [URL]}, 0.0, "speed"),
        ([SPEC], {SPEC.entry_region: [URL]}, float("nan"), "speed"),
    ],
)
async def test_a_run_that_cannot_work(
    tmp_path: Path, plan: Sequence[IntentSpec], routers: Mapping[str, Sequence[str]], speed: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        await run_load(plan, routers, ledger_path=tmp_path / "ledger", seed=1, speed=speed)
    assert not (tmp_path / "ledger").exists()


async def test_a_ledger_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "used").write_text("{}\n")
    with pytest.raises(LedgerError, match="already holds records"):
        await run_load([SPEC], {SPEC.entry_region: [URL]}, ledger_path=tmp_path / "used", seed=1)
    assert (tmp_path / "used").read_text() == "{}\n"
