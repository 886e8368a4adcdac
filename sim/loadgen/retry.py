"""What a client does after an attempt: pure decisions, no clock, randomness only from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from sim.loadgen.options import LoadOptions
from sim.workloads.plan import IntentSpec


class AttemptEnd(StrEnum):
    """How one attempt ended, as its client saw it."""

    OK = "ok"
    CANCELLED = "cancelled"  # the client closed the stream on purpose
    TIMEOUT = "timeout"  # the client's patience (first token, or whole intent) ran out
    REFUSED = "refused"  # no connection: nothing was sent
    DROPPED = "dropped"  # the connection ended before the answer did
    SHED = "shed"  # 429 or 503, as a status or inside the stream
    ERROR = "error"  # another 5xx, as a status or inside the stream
    REJECTED = "rejected"  # another status: retrying can't help


class Cause(StrEnum):
    """The final cause of an intent."""

    OK = "ok"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SHED = "shed"
    UNREACHED = "unreached"  # no router ever took the connection


_FINAL: dict[AttemptEnd, Cause] = {
    AttemptEnd.OK: Cause.OK,
    AttemptEnd.CANCELLED: Cause.CANCELLED,
    AttemptEnd.TIMEOUT: Cause.TIMEOUT,
    AttemptEnd.REFUSED: Cause.UNREACHED,
    AttemptEnd.DROPPED: Cause.FAILED,
    AttemptEnd.SHED: Cause.SHED,
    AttemptEnd.ERROR: Cause.FAILED,
    AttemptEnd.REJECTED: Cause.FAILED,
}


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `wait_ms` (workload time), at the next router where `elsewhere`."""

    wait_ms: float
    elsewhere: bool


@dataclass(slots=True)
class RetryPolicy:
    """One intent's retries: unanswered attempts go elsewhere until the deadline, answers spend the budget."""

    options: LoadOptions
    rng: random.Random
    attempts: int = 0
    answered_retries: int = 0

    def after(
        self, end: AttemptEnd, *, status: int | None, retry_after_ms: float | None, left_ms: float
    ) -> Retry | None:
        """The next try, or None where the intent ends here.

        `left_ms`: what remains until the intent gives up; a wait that doesn't fit is no retry. A shed
        answer is retried only where it says when (Retry-After); errors inside a stream (`status` 200)
        are final, since tokens may have been delivered.
        """
        self.attempts += 1
        unanswered = end in (AttemptEnd.REFUSED, AttemptEnd.DROPPED)
        invited = end is AttemptEnd.SHED and retry_after_ms is not None
        broken = end is AttemptEnd.ERROR and status is not None and status >= 500
        if not (unanswered or invited or broken):
            return None
        if not unanswered:
            if self.answered_retries >= self.options.max_retries:
                return None
            self.answered_retries += 1
        # Equal jitter (Brooker, "Exponential Backoff and Jitter"); the exponent is capped too.
        ceiling_ms = min(
            self.options.backoff_cap_ms, self.options.backoff_base_ms * 2 ** min(self.attempts - 1, 30)
        )
        wait_ms = self.rng.uniform(ceiling_ms / 2, ceiling_ms)
        if (
            retry_after_ms is not None
        ):  # jitter on top: all who were told the same second must not come at once
            wait_ms += retry_after_ms
        return Retry(wait_ms, elsewhere=end is not AttemptEnd.SHED) if wait_ms < left_ms else None


def final_cause(ends: list[AttemptEnd]) -> Cause:
    """The cause of an intent from the ends of its attempts: the last one's, where any router was reached."""
    if not ends:
        return Cause.FAILED
    cause = _FINAL[ends[-1]]
    if cause is Cause.UNREACHED and any(end is not AttemptEnd.REFUSED for end in ends):
        return Cause.FAILED
    return cause


def end_of_status(status: int) -> AttemptEnd:
    """The end that a final HTTP status (not 200), or an in-stream error code, stands for."""
    if status in (429, 503):
        return AttemptEnd.SHED
    return AttemptEnd.ERROR if status >= 500 else AttemptEnd.REJECTED


def cancel_after_tokens(spec: IntentSpec, seed: int, share: float) -> int | None:
    """After how many tokens this intent's client closes the stream; None: it waits for the end."""
    rng = random.Random(f"cancel-{seed}-{spec.intent_id}")
    if rng.random() >= share:
        return None
    return rng.randint(1, max(1, spec.output_tokens - 1))


def parse_retry_after_ms(value: str | None) -> float | None:
    """Retry-After in seconds (fractions allowed) as ms; None where absent or not a number of seconds."""
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds * 1_000.0 if 0 <= seconds < float("inf") else None
