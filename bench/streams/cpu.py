"""CPU time and memory of a process and all its children, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """A process and its descendants that live now."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, at = [pid], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found


def cpu_s(pid: int) -> float:
    """CPU-seconds that the tree has used, user and system, ended and awaited children included."""
    total = 0
    for each in tree(pid):
        fields = _stat(each)
        if fields is not None:
            total += sum(int(fields[place]) for place in (11, 12, 13, 14))
    return total / TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Resident memory of the tree."""
    total = 0
    for each in tree(pid):
        fields = _stat(each)
        if fields is not None:
            total += int(fields[21]) * PAGE_BYTES
    return total


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on (field 3 of its manual page is index 0)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
