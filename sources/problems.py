"""What can be wrong with an engine's metrics, as typed problems with a sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProblemKind = Literal[
    "missing",  # none of the candidates is in the text: renamed, removed, or never there
    "wrong_type",  # the metric is there, but its TYPE is not what the mapping expects
    "not_finite",  # NaN or infinite
    "out_of_bounds",  # a number no engine can mean
    "duplicate",  # the same series twice
    "unparseable",  # a line of this metric is no sample
    "ambiguous",  # several series where one was expected, or no way to tell whose it is
    "stamped",  # the sample has a time stamp of its own: a copy of unknown age
    "truncated",  # the text ends in the middle of a line
    "counter_fell",  # a counter fell within a boot
    "other_model",  # the text speaks of other models than the endpoint is said to serve
    "other_role",  # the engine says that it prefills or decodes, the list says otherwise
]
DRIFT: frozenset[ProblemKind] = frozenset({"missing", "wrong_type"})
"""Problems that say that the engine's metrics are no longer what the mapping expects."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that made a reading unknown (or a whole text suspect). The sentence is for people."""

    kind: ProblemKind
    sentence: str
    reading: str | None = None
    metric: str | None = None

    @property
    def drift(self) -> bool:
        """True where the mapping and the engine have come apart."""
        return self.kind in DRIFT


UnreadableKind = Literal["not_metrics", "too_large"]


class Unreadable(ValueError):  # noqa: N818 - reads as what happened
    """A text that is no Prometheus exposition at all, so nothing of it may be believed."""

    def __init__(self, kind: UnreadableKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind: UnreadableKind = kind
        self.sentence = sentence
