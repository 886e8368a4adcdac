"""All of the benchmark: catching up (one event a record, and envelopes of 50), a steady rate, a table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.streams import steady as steady_rate
from bench.streams import table as live_table
from bench.streams.catch_up import run_case

CASES = (1, 50)


def run(
    peers_python: Path | None, events: int, steady_s: float, rate: int, instances: int, quiet: int
) -> dict[str, Any]:
    """Run what is asked for (0 leaves a part out); without ``peers_python`` this app alone.

    ``events_per_cpu_s`` is ``{arm: {"1": .., "50": ..}}``; a row that disagrees with the plain loop is a
    RuntimeError, for then no figure means anything.
    """
    found: dict[str, Any] = {"events_per_cpu_s": {}, "catch_up": {}}
    with tempfile.TemporaryDirectory(prefix="tokenfleet-bench-") as folder:
        where = Path(folder)
        for batch in CASES if events else ():
            case = run_case(where, peers_python, events, batch)
            found["catch_up"][str(batch)] = case
            for arm, figures in case.items():
                _hold(arm, figures)
                found["events_per_cpu_s"].setdefault(arm, {})[str(batch)] = figures["events_per_cpu_s"]
        if steady_s:
            found["steady"] = steady_rate.run(where, peers_python, rate, steady_s)
            for arm, figures in found["steady"].items():
                _hold(arm, figures)
        if instances:
            found["table"] = live_table.run(where, instances, quiet)
    return found


def _hold(arm: str, figures: dict[str, Any]) -> None:
    if not figures["right"]:
        raise RuntimeError(f"The rows of {arm} are not what a plain loop over the same events gives.")
