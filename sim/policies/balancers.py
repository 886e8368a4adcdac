"""All balancers by name, with their knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.des.policy import Balancer, LeastOutstanding, PowerOfTwo, RoundRobin
from sim.des.production import LeastOutstandingMind
from sim.policies.affinity import AibrixPrefix, CacheAware
from sim.policies.knobs import Entry, Knob, table
from sim.policies.ours import PredictedTtft
from sim.policies.plain import PrefixHash, RandomChoice
from sim.policies.scored import (
    DynamoKv,
    GatewayScorers,
    LeastPrefillWork,
    LMetric,
    MooncakeConductor,
    SmgLeastLoad,
)

BALANCERS: Final[Mapping[str, Entry[Balancer]]] = table(
    Entry[Balancer]("rr", "round robin", "classic", RoundRobin),
    Entry[Balancer]("random", "random", "classic", RandomChoice),
    Entry[Balancer]("lor", "least outstanding", "classic", LeastOutstanding),
    Entry[Balancer]("p2c", "power of two", "Mitzenmacher 2001", PowerOfTwo),
    Entry[Balancer](
        "prefix_hash", "prefix hash", "classic", PrefixHash, (Knob("blocks", 3, 2, 16, whole=True),)
    ),
    Entry[Balancer](
        "sglang",
        "SGLang cache_aware",
        "SGLang router",
        CacheAware,
        (
            Knob("imbalance", 64, 1, 128, log_scale=True),
            Knob("imbalance_ratio", 1.5, 1.0, 3.0),
            Knob("match_share", 0.3, 0.02, 0.9),
        ),
        needs_prefix=True,
    ),
    Entry[Balancer](
        "gie",
        "GIE / llm-d",
        "Gateway API Inference Extension",
        GatewayScorers,
        (
            Knob("queue_weight", 2, 0, 5),
            Knob("kv_weight", 2, 0, 5),
            Knob("prefix_weight", 3, 0, 5),
        ),
        needs_prefix=True,
    ),
    Entry[Balancer](
        "dynamo",
        "Dynamo KV router",
        "NVIDIA Dynamo",
        DynamoKv,
        (Knob("prefill_weight", 1, 0.1, 10, log_scale=True), Knob("active_weight", 0, 0, 20)),
        needs_prefix=True,
    ),
    Entry[Balancer]("lmetric", "LMetric", "LMetric", LMetric, needs_prefix=True),
    Entry[Balancer]("lpwl", "LPWL", "least prefill work left", LeastPrefillWork, needs_prefix=True),
    Entry[Balancer](
        "mooncake",
        "Mooncake conductor",
        "Mooncake, FAST 2025",
        MooncakeConductor,
        (Knob("queue_weight", 1, 0.25, 4, log_scale=True),),
        needs_prefix=True,
    ),
    Entry[Balancer](
        "aibrix",
        "AIBrix prefix-cache",
        "AIBrix",
        AibrixPrefix,
        (Knob("imbalance", 8, 1, 64, log_scale=True), Knob("sigmas", 1, 0, 3)),
        needs_prefix=True,
    ),
    Entry[Balancer](
        "smg",
        "SMG least_load",
        "SGLang model gateway",
        SmgLeastLoad,
        (Knob("kv_weight", 0.15, 0.01, 3, log_scale=True),),
    ),
    Entry[Balancer](
        "least_outstanding_mind", "ours: least outstanding", "minds.tokenpilot", LeastOutstandingMind
    ),
    Entry[Balancer](
        "predicted_ttft",
        "ours: predicted TTFT",
        "minds.tokenpilot",
        PredictedTtft,
        (
            Knob("near_tie_ms", 5, 0, 50),
            Knob("near_tie_ratio", 0.05, 0, 0.3),
            Knob("kv_barrier", 0.95, 0.7, 1.0),
            Knob("rate_error", 0, 0, 1),
        ),
        needs_prefix=True,
    ),
)
"""Every row of the scoring table that chooses an instance."""
