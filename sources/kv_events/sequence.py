"""Which batches of a KV event stream to believe: gaps, duplicates and restarts. Pure.

Sequence numbers are contiguous within a life of the engine and begin at 0 again after a restart, with no
event that says so. A number alone does not tell a life from the next; number and time stamp together do, so
the stamps of recent batches are kept, and a replay is asked from the last applied batch on: where the engine
gives that batch back with another stamp, or has no such batch, it is not the same life any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sources.kv_events.wire import Batch, Cleared

REMEMBERED = 16_384
"""Stamps kept: more than a publisher's replay buffer (10,000 batches), so any duplicate is known as one."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is known of the cache any more: the engine restarted, or batches are lost for good."""

    why: Literal["restart", "gap", "boot"]


Step = Batch | Forget


@dataclass(frozen=True, slots=True)
class Verdict:
    """Steps to take in order; then, where ``ask_from`` is set, ask for a replay from that number on."""

    steps: tuple[Step, ...] = ()
    ask_from: int | None = None


@dataclass(slots=True)
class Counts:
    """What happened on a stream since the agent began to follow it."""

    applied: int = 0
    duplicates: int = 0
    restarts: int = 0
    gaps_filled: int = 0
    gaps_lost: int = 0
    batches_lost: int = 0


@dataclass(slots=True)
class Position:
    """Where in one rank's stream we are.

    ``last`` is the number of the last batch applied, None before the first one of a life. ``whole`` is True
    while all of the cache's content is known: from batch 0, or from a clear, without a loss since.
    """

    counts: Counts = field(default_factory=Counts)
    last: int | None = None
    whole: bool = False
    began_ts_s: float | None = None
    """The engine's clock at the first batch seen of this life."""
    _stamps: dict[int, float] = field(default_factory=dict)

    @property
    def ask_from(self) -> int:
        """Where a replay should begin: with the last batch applied, to see that it is still the same life."""
        return self.last or 0

    @property
    def _next(self) -> int:
        return 0 if self.last is None else self.last + 1

    def live(self, batch: Batch) -> Verdict:
        """What to do with a batch as it arrives; after a question, ``replayed`` decides about it."""
        if self._is_known(batch):
            self.counts.duplicates += 1
            return Verdict()
        if batch.seq == self._next:
            return Verdict((self._apply(batch),))
        if self.last is None or batch.seq > self.last:
            return Verdict(ask_from=self.ask_from)
        restart = self._restart()
        if batch.seq == 0:
            return Verdict((restart, self._apply(batch)))
        return Verdict((restart,), ask_from=0)

    def replayed(self, batches: Sequence[Batch] | None, live: Batch | None = None) -> Verdict:
        """Take what a replay gave (None: there is none to be had) and the batch that made us ask.

        Without ``live`` this was a look whether anything was missed. The verdict may ask once more, from 0,
        where the replay shows that the engine has restarted.
        """
        if batches is None:
            return Verdict() if live is None else Verdict(tuple(self._jump([live])))
        by_seq = {batch.seq: batch for batch in batches}
        if live is not None:
            by_seq[live.seq] = live
        run = [by_seq[seq] for seq in sorted(by_seq)]
        if self.last is None:
            return Verdict(tuple(self._jump(run)))
        anchor = by_seq.get(self.last)
        if anchor is not None and self._is_known(anchor):
            before = self.counts.batches_lost
            run = [batch for batch in run if batch.seq > anchor.seq]
            steps = self._jump(run)
            if run and self.counts.batches_lost == before:
                self.counts.gaps_filled += 1
            return Verdict(tuple(steps))
        if anchor is not None or not batches:
            # The engine has another batch of this number, or none (the newest one is always kept).
            return Verdict((self._restart(),), ask_from=0)
        # Its buffer does not reach back to where we were.
        return Verdict((self._lose_up_to(run[0]), *self._jump(run)))

    def _jump(self, run: Sequence[Batch]) -> list[Step]:
        """Apply ascending batches; before each that does not follow, forget."""
        steps: list[Step] = []
        for batch in run:
            if batch.seq != self._next:
                steps.append(self._lose_up_to(batch))
            steps.append(self._apply(batch))
        return steps

    def _lose_up_to(self, batch: Batch) -> Forget:
        self.counts.gaps_lost += 1
        self.counts.batches_lost += max(0, batch.seq - self._next)
        self.last, self.whole, self.began_ts_s = batch.seq - 1 if batch.seq else None, False, None
        return Forget("gap")

    def _apply(self, batch: Batch) -> Batch:
        if self.began_ts_s is None:
            self.began_ts_s = batch.ts_s
        if batch.seq == 0 or any(isinstance(event, Cleared) for event in batch.events):
            self.whole = True
        if batch.unread:
            self.whole = False
        self.last = batch.seq
        self._stamps[batch.seq] = batch.ts_s
        self._stamps.pop(batch.seq - REMEMBERED, None)
        self.counts.applied += 1
        return batch

    def _is_known(self, batch: Batch) -> bool:
        return self._stamps.get(batch.seq) == batch.ts_s

    def _restart(self) -> Forget:
        self.counts.restarts += 1
        return self.forget("restart")

    def forget(self, why: Literal["restart", "boot"]) -> Forget:
        """Begin as with a stream never seen, such as when the engine is known to have a new boot."""
        self.last, self.whole, self.began_ts_s, self._stamps = None, False, None, {}
        return Forget(why)
