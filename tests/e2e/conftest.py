"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.running import Demo


@pytest.fixture
def demo(tmp_path: Path, kafka):  # the fixture says whether a real broker can be had at all
    started: list[Demo] = []

    def start(*flags: str) -> Demo:
        started.append(Demo(tmp_path, *flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(30)
