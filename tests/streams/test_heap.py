"""The allocator takes what it is told, and where it can't be told nothing happens."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from streams import heap

KEEPS = """
import resource
from streams.heap import keep_freed
said = keep_freed()
block = bytearray(8 * 2**20)
del block
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = bytearray(8 * 2**20)
    del block
print(said, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_block_that_was_freed_is_taken_again_without_new_pages() -> None:
    said, faults = subprocess.check_output([sys.executable, "-c", KEEPS], text=True).split()
    is_glibc = platform.libc_ver()[0] == "glibc"  # another allocator is left as it is
    assert said == str(is_glibc)
    assert not is_glibc or int(faults) < 2_000, "20 times 8 MB would be 40,000 pages."


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A C library without mallopt."""

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Other())
    assert heap.keep_freed() is False
