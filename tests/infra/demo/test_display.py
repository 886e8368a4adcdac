"""What the demo shows while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from infra.demo.display import LiveDisplay
from sim.loadgen.ledger import LiveView


def test_a_reading_that_no_engine_gives_is_shown_as_unknown_and_not_as_a_figure() -> None:
    """llama.cpp does not tell how full its cache is; a row's missing reading is no zero."""
    display = LiveDisplay(10)
    display.update(
        LiveView(1_000.0, 10, 4, 1, {"ok": 3}, {"interactive": 4}, {"interactive": 3}, 0, 50, (90.0,))
    )
    running = {"value": 0.0, "quality": "fresh", "age_ms": 100.0}
    row = {"region": "eu-west", "ready_endpoints": 2, "known_endpoints": 2, "requests_running": running}
    display.regions([row])
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(display)
    (line,) = [line for line in console.export_text().splitlines() if "eu-west" in line]
    assert line.split()[-6:] == ["eu-west", "2/2", "0", "unknown", "unknown", "unknown"]
