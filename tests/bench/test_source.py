"""The benchmark's engines answer with a page like a real one's: as long, readable, and moving."""

from __future__ import annotations

from bench.source_engines import PAGE_BYTES, make_pages
from sources.engines.mapping import mapping_of
from sources.engines.reader import read_engine


def test_its_pages_are_whole_and_only_ever_rise() -> None:
    pages = make_pages(3)
    assert all(PAGE_BYTES * 0.98 <= len(page) <= PAGE_BYTES * 1.1 for page in pages)
    samples = [read_engine(page, mapping_of("vllm"), latencies=True) for page in pages]
    tokens, ttft = [], []
    for (sample,) in samples:
        assert sample.problems == []
        assert len(sample.latencies) == 7
        tokens.append(sample.values["generation_tokens_total"])
        ttft.append(sum(sample.latencies[0].counts))
    assert tokens == sorted(set(tokens))
    assert ttft == sorted(set(ttft))
