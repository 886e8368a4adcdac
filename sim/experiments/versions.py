"""Which version of the model an intent asks for: by shares that change during a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from sim.des.clients import conversation_of
from sim.experiments.spec import NEWEST, VersionShares
from sim.workloads.plan import IntentSpec


def asking_for_versions(
    specs: Sequence[IntentSpec], steps: Sequence[VersionShares], seed: int
) -> tuple[IntentSpec, ...]:
    """The intents with their versions; the bare model name where no step applies.

    Every conversation has one number of [0, 1), which the shares in the order they are written divide. So a
    growing share takes conversations from its neighbour and shuffles no others. It depends on the seed and
    the conversation only, never on a policy.
    """
    if not steps:
        return tuple(specs)
    ordered = sorted(steps, key=lambda step: step.at_s)
    return tuple(
        replace(spec, model_version=_version(spec, number, ordered, seed))
        for number, spec in enumerate(specs)
    )


def _version(spec: IntentSpec, number: int, ordered: Sequence[VersionShares], seed: int) -> str | None:
    step = None
    for candidate in ordered:
        if candidate.at_s * 1_000.0 <= spec.at_ms and spec.residency not in candidate.not_for:
            step = candidate
    if step is None:
        return None
    kind, name = conversation_of(spec, number)
    drawn = Random(f"version-{seed}-{kind}-{name}").random()
    edges = list(accumulate(step.shares.values()))
    chosen = list(step.shares)[min(bisect_right(edges, drawn * edges[-1]), len(edges) - 1)]
    return None if chosen == NEWEST else chosen
