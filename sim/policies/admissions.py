"""All admission policies by name, with their knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.des.policy import Admission, AdmitAll
from sim.policies.knobs import Entry, Knob, table
from sim.policies.limiters import ClientThrottling, EnvoyAdaptive, Gradient2, NaiveAimd, Vegas
from sim.policies.queues import Saturation, SmgClasses, StaticCap

ROUTERS = Knob("routers", 1, 1, 1_000, whole=True)
"""How many routers share the fleet: each may use its part of a limit. Not tuned."""

ADMISSIONS: Final[Mapping[str, Entry[Admission]]] = table(
    Entry[Admission]("all", "immediate dispatch", "none", AdmitAll),
    Entry[Admission](
        "static_cap",
        "ours: static cap, EDF queue",
        "minds.slomax.admission",
        StaticCap,
        (
            Knob("cap", 128, 16, 256, log_scale=True, whole=True),
            Knob("retry_share", 0.1, 0, 1),
            Knob("slack", 0.75, 0.3, 1.2),
            ROUTERS,
        ),
    ),
    Entry[Admission](
        "smg_classes",
        "SMG classes",
        "SGLang model gateway",
        SmgClasses,
        (
            Knob("slots", 128, 16, 256, log_scale=True, whole=True),
            Knob("floor_share", 0.25, 0, 0.8),
            ROUTERS,
        ),
    ),
    Entry[Admission](
        "saturation",
        "llm-d saturation",
        "llm-d",
        Saturation,
        (
            Knob("queue_limit", 5, 1, 64, log_scale=True),
            Knob("kv_limit", 0.8, 0.3, 1.0),
            Knob("stale_ms", 200, 200, 3_000),
            Knob("shed_gain", 300, 0.1, 1_000, log_scale=True),
            ROUTERS,
        ),
    ),
    Entry[Admission](
        "gradient2",
        "Gradient2",
        "Netflix concurrency-limits",
        Gradient2,
        (Knob("tolerance", 1.5, 1, 3), Knob("headroom", 4, 1, 16), ROUTERS),
    ),
    Entry[Admission](
        "vegas",
        "Vegas",
        "Netflix concurrency-limits",
        Vegas,
        (Knob("low", 3, 1, 128, log_scale=True), Knob("high", 6, 2, 192, log_scale=True), ROUTERS),
    ),
    Entry[Admission](
        "envoy_adaptive",
        "Envoy adaptive",
        "Envoy",
        EnvoyAdaptive,
        (Knob("buffer", 0.25, 0.05, 4, log_scale=True), ROUTERS),
    ),
    Entry[Admission](
        "aimd",
        "naive AIMD",
        "classic",
        NaiveAimd,
        (Knob("cut", 0.9, 0.5, 0.99), Knob("target", 0.95, 0.5, 0.99), Knob("step", 2, 1, 8), ROUTERS),
    ),
    Entry[Admission](
        "client_throttling",
        "client throttling",
        "Google SRE",
        ClientThrottling,
        (Knob("k", 2, 1.05, 4), Knob("window_s", 120, 10, 300), ROUTERS),
    ),
)
"""Every admission policy."""
