"""The trimmed captures of a real vLLM server, and a page as llama.cpp's own server gave it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parent.parent / "fixtures" / "vllm-0.32.0"

LLAMA_CPP_PAGE = b"""\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 46
# HELP llamacpp:prompt_tokens_cached_total Number of prompt tokens reused from the cache
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 44
# HELP llamacpp:prompt_seconds_total Total time spent processing prompts
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 0.091291
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 10
# HELP llamacpp:prompt_tokens_seconds Average prompt throughput in tokens/s
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 503.883
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 6872.85
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 3
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
# HELP llamacpp:n_busy_slots_per_decode Average number of busy slots per llama_decode() call
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1
"""


@pytest.fixture(scope="session")
def capture() -> Callable[[str], bytes]:
    """The bytes of a capture by its name: idle, under_load, after, restart, small_cache."""
    return lambda name: (CAPTURES / f"metrics_{name}.txt").read_bytes()


@pytest.fixture(scope="session")
def llama_cpp_page() -> bytes:
    """What llama.cpp's server answered after two equal prompts of 45 tokens (44 of the second cached)."""
    return LLAMA_CPP_PAGE
