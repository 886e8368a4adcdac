"""The grid: same seed same bytes, in one process or two; rows of all classes and oracles."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sim.experiments.grid import run_grid, tasks_of
from sim.experiments.knee import find_knee
from sim.experiments.stats import Cells
from sim.experiments.store import CELLS, REQUESTS, RUN, read, read_requests, write
from sim.experiments.tune import tune_all
from sim.experiments.workload import Places, notes
from sim.report.page import render
from tests.sim.experiments.small import TEXT, load


def _run(folder: Path, text: str, out: str, processes: int) -> Path:
    experiment = load(folder, text)
    places = Places(folder, None)
    results = run_grid(experiment, tasks_of(experiment), places, processes=processes)
    write(folder / out, experiment, notes(experiment, places), results)
    return folder / out


def test_the_same_seed_gives_the_same_bytes_in_one_process_or_two(tmp_path: Path) -> None:
    text = TEXT.replace("[1, 2]", "[1]")
    one, two = _run(tmp_path, text, "one", 1), _run(tmp_path, text, "two", 2)
    for name in (CELLS, REQUESTS, RUN):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    other = _run(tmp_path, text.replace("[1]", "[2]"), "other", 1)
    assert (one / CELLS).read_bytes() != (other / CELLS).read_bytes()


def test_rows_metadata_and_report(tmp_path: Path) -> None:
    out = _run(tmp_path, TEXT, "out", 1)
    experiment, recorded, rows = read(out)
    assert recorded["seeds"] == [1, 2]
    assert "numpy" in recorded["versions"]
    metadata = json.loads(pq.read_schema(out / CELLS).metadata[b"tokenfleet"])
    assert metadata["experiment"]["name"] == "tiny"
    cells = Cells(rows)
    assert cells.classes == ["batch", "conversation"]
    oracles = {"oracle: request", "oracle: pooled", "oracle: goodput", "oracle: static"}
    assert oracles <= set(cells.arms)
    for load_name in cells.loads:
        # The same intents in every arm, whatever it does with them.
        offered = {arm: cells.values(arm, load_name, "offered") for arm in ("RR", "GIE", "cap")}
        assert offered["RR"] == offered["GIE"] == offered["cap"]
        for metric in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p95_ms"):
            assert cells.mean("oracle: request", load_name, metric).mean <= (
                cells.mean("RR", load_name, metric).mean
            )
    page = render(experiment, recorded, rows, read_requests(out))
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<svg viewBox") >= 6 + 2 * 4
    for said in ("Class batch", "Class conversation", "Gap closed", "paired by seed", "built-in generator"):
        assert said in page
    for chart in ("Load sweep", "TTFT, all intents", "TPOT, answers", "over time"):
        assert chart in page
    assert f"numpy {recorded['versions']['numpy']}" in page
    assert "seeds [1, 2]" in page


def test_tuning_gives_every_arm_with_knobs_the_same_number_of_trials(tmp_path: Path) -> None:
    experiment = load(tmp_path, TEXT.replace("duration_s: 40", "duration_s: 15"))
    tuned = list(
        tune_all(experiment, Places(tmp_path, None), trials=3, metric="ttft_mean_ms", seed=9, processes=1)
    )
    counts = {item.arm: len(item.trials) for item in tuned}
    assert counts == {"RR": 1, "GIE": 3, "cap": 3}
    gie = next(item for item in tuned if item.arm == "GIE")
    assert gie.trials[0].knobs["balancer.queue_weight"] == 1.0  # the arm's own come first
    assert gie.best.score <= max(trial.score for trial in gie.trials)
    again = list(
        tune_all(experiment, Places(tmp_path, None), trials=3, metric="ttft_mean_ms", seed=9, processes=1)
    )
    assert again == tuned


def test_the_knee_lies_where_the_share_of_good_ones_falls(tmp_path: Path) -> None:
    experiment = load(tmp_path, TEXT)
    found = find_knee(experiment, experiment.arms[0], 0.9, Places(tmp_path, None), seeds=1, rounds=3)
    below = [p.good_share for p in found.probes if p.rate_rps <= found.rate_rps]
    assert below
    assert found.probes[-1].good_share < 0.9 <= max(below)


def test_an_error_in_a_process_comes_through(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    broken = experiment.model_copy(update={"warmup_share": 2.0})
    with pytest.raises(ValueError, match="warm-up"):
        list(run_grid(broken, tasks_of(broken)[:2], Places(tmp_path, None), processes=2))
