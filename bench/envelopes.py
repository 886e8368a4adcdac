"""Decoding outcomes: one event a record against envelopes of 50, fast path against pydantic and plain JSON.

Run: ``tokenfleet bench envelopes``. Events per CPU-second, best of several rounds taken in turn, so that
ratios hold on a noisy machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from schemas.codec import decode_events, envelope_headers, headers_for, to_json
from schemas.envelopes import Envelope
from schemas.outcomes import Outcome
from schemas.topics import OUTCOMES

T0 = 1_796_000_000_000
EVENTS = 20_000
ROUNDS = 5


def sample_outcome() -> Outcome:
    """An ordinary finished request."""
    return Outcome(
        decision_id="router-0-19f3c2a1-000123",
        intent_id="intent-000123",
        intent_inferred=False,
        attempt=1,
        router="router-0",
        router_boot="19f3c2a1",
        tenant="public",
        service_class="interactive",
        pool="llama-70b@v1",
        entry_region="edge",
        region="eu-west",
        instance="eu-west-0",
        instance_boot="b19f3",
        cause="ok",
        status=200,
        at_ms=T0 + 3000,
        intent_started_at_ms=T0,
        started_at_ms=T0,
        first_token_at_ms=T0 + 120,
        ttft_ms=120.0,
        tpot_ms=13.4,
        e2e_ms=3000.0,
        prompt_tokens=1155,
        output_tokens=211,
        ttft_slo_ms=2000.0,
        tpot_slo_ms=60.0,
        deadline_at_ms=T0 + 60_000,
        within_slo=True,
        work_tokens=420.0,
    )


def run() -> dict[str, Any]:
    """Measure; returns ``{"record_bytes": {...}, "events_per_cpu_s": {reader: {"1": .., "50": ..}}}``."""
    outcome = sample_outcome()
    single = to_json(outcome)
    batch = to_json(
        Envelope[Outcome](producer="router-0", boot="19f3", seq=7, sent_at_ms=T0, events=[outcome] * 50)
    )
    one, many = tuple(headers_for(Outcome)), tuple(envelope_headers(Outcome))
    readers: dict[str, dict[str, Callable[[], object]]] = {
        "fast path (decode_events)": {
            "1": lambda: decode_events(OUTCOMES, one, single),
            "50": lambda: decode_events(OUTCOMES, many, batch),
        },
        "pydantic": {
            "1": lambda: Outcome.model_validate_json(single),
            "50": lambda: Envelope[Outcome].model_validate_json(batch),
        },
        "json.loads, unchecked": {"1": lambda: json.loads(single), "50": lambda: json.loads(batch)},
    }
    best: dict[str, dict[str, float]] = {name: {"1": 0.0, "50": 0.0} for name in readers}
    for _ in range(ROUNDS):
        for name, sizes in readers.items():
            for size, read in sizes.items():
                records = EVENTS // int(size)
                began = time.process_time()
                for _ in range(records):
                    read()
                rate = records * int(size) / (time.process_time() - began)
                best[name][size] = max(best[name][size], round(rate))
    return {"record_bytes": {"1": len(single), "50": len(batch)}, "events_per_cpu_s": best}
