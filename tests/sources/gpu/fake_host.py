"""A GpuSource in a process of its own, so that the library it loads is the one beside the test.

It ends when each text given as an argument was in a sample or alert (or after 30 s) and writes all as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from typing import Any

import structlog

from schemas.operations import AlertRow
from schemas.topics import GPUS, Topic
from sources.gpu.config import GpusConfig
from sources.gpu.service import GpuSource


class Recorder:
    """Takes samples as the producer would, and alerts as the row queue would."""

    def __init__(self, until: list[str]) -> None:
        self.said: list[dict[str, Any]] = []
        self.done = asyncio.Event()
        self.awaited = set(until)

    def emit(self, topic: Topic, event: Any) -> None:
        assert topic is GPUS
        self._note({"sample": event.model_dump()})

    def put(self, row: AlertRow, home: str) -> None:
        assert home == row.alert_id
        self._note({"alert": row.model_dump()})

    def _note(self, what: dict[str, Any]) -> None:
        self.said.append(what)
        text = json.dumps(what)
        self.awaited -= {each for each in self.awaited if each in text}
        if not self.awaited:
            self.done.set()


async def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    recorder = Recorder(sys.argv[1:])
    config = GpusConfig(host="node-1", interval_ms=100, timeout_s=0.5)
    source = GpuSource(config, recorder, open_every_ms=300)
    await source.start(recorder)  # type: ignore[arg-type]
    try:
        await asyncio.wait_for(recorder.done.wait(), 30)
    except TimeoutError:
        recorder.said.append({"never": sorted(recorder.awaited)})
    await source.stop()
    sys.stdout.write(json.dumps({"said": recorder.said, "threads": threading.active_count()}))
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
