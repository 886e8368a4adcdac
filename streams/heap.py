"""The C library's allocator told to keep what is freed: fetched megabytes come and go all the time.

By default glibc gives large blocks back to the system and takes them anew, and each page of them is then
cleared by the kernel at its first use: a twentieth of what catching up costs. The memory that is kept is what
was in use before.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
KEPT_BYTES = 512 * 1024 * 1024
LARGEST_BYTES = 32 * 1024 * 1024
"""The most that glibc takes for the second one."""


def keep_freed() -> bool:
    """Whether the allocator is one that can be told so, as glibc's: others are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
