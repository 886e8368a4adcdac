"""Whether llama.cpp's server can run here: it comes in a wheel that is not made for every machine."""

from __future__ import annotations

import importlib.util

from infra.errors import StackError

WHERE_WHEELS_ARE = "Linux with glibc and macOS 13 or newer, on x86-64 and arm64"
"""As published for CPython 3.10 and later (one stable-ABI wheel for each platform)."""


def is_installed() -> bool:
    """Whether the packages that a real engine needs are there; they are not imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("xllamacpp", "gguf", "numpy"))


def require_installed() -> None:
    """Raise StackError, with one sentence, where the wheel is missing."""
    if not is_installed():
        raise StackError(
            "llama.cpp's server is not installed: install tokenfleet[real-engine] (its xllamacpp wheel is "
            f"made for {WHERE_WHEELS_ARE}), or use the emulated engines."
        )
