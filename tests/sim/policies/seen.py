"""What a router sees, set by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.des.policy import OutcomeView, RequestView
from sim.des.prefix_index import PlacementLog
from sim.des.signals import RouterSignals, SignalBoard, SignalOptions
from sim.des.views import CandidatesView, FleetView, RouterLayout

KV_TOKENS = 600_000.0


def request(
    number: int = 0,
    *,
    tokens: int = 10_000,
    blocks: Sequence[int] = (),
    attempt: int = 1,
    ttft_slo_ms: float = 2_000.0,
    first_ms: float = 0.0,
    entry: int = 0,
) -> RequestView:
    """One request."""
    return RequestView(
        number,
        attempt,
        "interactive" if ttft_slo_ms < 10_000 else "batch",
        "t",
        entry,
        None,
        tokens,
        tuple(blocks),
        first_ms,
        first_ms,
        first_ms + 60_000.0,
        ttft_slo_ms,
        60.0,
    )


class Seen:
    """Signals of some instances at time 1,000 ms, sampled at 900."""

    def __init__(
        self,
        waiting: Sequence[float],
        running: Sequence[float],
        kv: Sequence[float] | None = None,
        *,
        engine: str = "S2",
        regions: Sequence[Sequence[int]] | None = None,
        rtts_ms: Sequence[float] = (0.0,),
    ) -> None:
        count = len(waiting)
        self.board = SignalBoard(count, SignalOptions(delay_ms=0.0), seed=0)
        self.board.sampled_ms[:] = 900.0
        usage = kv if kv is not None else [0.0] * count
        self.board.columns = np.array([waiting, running, usage, [0.0] * count], dtype=float)
        self.board._seen()
        self.log = PlacementLog([1_000] * count)
        self.signals = RouterSignals(self.board, self.log)
        routable = [np.array(part, int) for part in (regions or [range(count)])]
        links = [(f"r{i}", rtt, 0.0) for i, rtt in enumerate(rtts_ms)]
        capacity = np.full(count, KV_TOKENS)
        self.layout = RouterLayout(self.signals, routable, links, capacity, (engine,) * count)

    def cached(self, instance: int, blocks: Sequence[int]) -> Seen:
        """A prompt with these blocks was placed there."""
        self.log.index.placed(instance, list(blocks))
        return self

    def pending(self, *tokens: float) -> Seen:
        """Prefill under way."""
        self.signals.pending[0] = tokens
        return self

    @property
    def fleet(self) -> FleetView:
        """All regions."""
        return FleetView(1_000.0, self.layout)

    @property
    def view(self) -> CandidatesView:
        """The first region."""
        return self.layout.candidates(1_000.0, 0)


def outcome(
    end: str = "ok", *, ttft_ms: float | None = 500.0, tpot_ms: float | None = 20.0, started_ms: float = 0.0
) -> OutcomeView:
    """An attempt that ended."""
    return OutcomeView(end, 0, started_ms, started_ms, started_ms + 5_000.0, ttft_ms, tpot_ms, 100, 0)
