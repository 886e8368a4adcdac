"""What the step model says of a measured point: in closed form, and by simulating the measurement.

Closed form for a closed loop of B clients with prompts of L and answers of O tokens: in a steady state each
step decodes B sequences with ``B*(L + O/2)`` resident tokens, and B/O prompts begin in it, so
``tpot = a + b*B + c*KV_k + (B/O) * (d*L + e*(L/1000)^2/2)``. It is linear in the coefficients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.des.events import EventQueue
from sim.des.instance import Instance
from sim.des.sequence import Sequence
from sim.engine.step_model import StepParams, frontend_ms
from sim.fit.profiles import Point

_MAX_NUM_SEQS = 1_024  # the measurements have as many sequences in a batch as there are clients


def features(point: Point) -> tuple[float, float, float, float, float]:
    """The factors of a, b, c, d, e in the closed form."""
    if point.quantity == "itl":
        return 1.0, point.decoders, point.resident_tokens * 1e-3, 0.0, 0.0
    prompt_k = point.prompt_tokens * 1e-3
    if point.quantity == "prefill":
        return 1.0, 0.0, 0.0, float(point.prompt_tokens), 0.5 * prompt_k * prompt_k
    begin = point.decoders / point.output_tokens
    resident_k = point.decoders * (point.prompt_tokens + 0.5 * point.output_tokens) * 1e-3
    return 1.0, point.decoders, resident_k, begin * point.prompt_tokens, begin * 0.5 * prompt_k * prompt_k


def coefficients(params: StepParams) -> NDArray[np.float64]:
    """a, b, c, d, e of a parameter set."""
    return np.array(
        [params.base_ms, params.decode_ms, params.resident_ms, params.prefill_ms, params.attention_ms]
    )


def simulate(params: StepParams, point: Point, *, rounds: int = 3) -> tuple[float, float]:
    """``(tpot, ttft)`` in ms of a ``tpot`` point, measured on the simulated instance.

    Clients start spread over the time that one request takes, as they do in a long measurement; of
    ``rounds`` requests each the first is left out. ValueError for another kind of point.
    """
    if point.quantity != "tpot":
        raise ValueError(f"Only tpot points can be simulated, not {point.quantity}.")
    loop = _ClosedLoop(params, point, rounds)
    return loop.run(float(np.dot(coefficients(params), features(point))))


class _ClosedLoop:
    """B clients of one instance; it listens to it."""

    def __init__(self, params: StepParams, point: Point, rounds: int) -> None:
        self._events = EventQueue()
        self._instance = Instance(params, self._events, self, max_num_seqs=_MAX_NUM_SEQS)
        self._prompt, self._output = point.prompt_tokens, point.output_tokens
        self._clients = max(1, round(point.decoders))
        self._rounds = rounds
        self._tpot_ms: list[float] = []
        self._ttft_ms: list[float] = []

    def run(self, tpot_ms: float) -> tuple[float, float]:
        """Play it; ``tpot_ms`` is about what will come out, to spread the starts."""
        spread_ms = tpot_ms * self._output / self._clients
        for client in range(self._clients):
            self._events.at(client * spread_ms, self._ask, self._rounds)
        self._events.run()
        return float(np.mean(self._tpot_ms)), float(np.mean(self._ttft_ms))

    def _ask(self, now_ms: float, rounds_left: int) -> None:
        self._instance.submit(Sequence(self._prompt, self._output, (), rounds_left), now_ms)

    def first_token(self, sequence: Sequence, now_ms: float) -> None:
        """One more wait."""
        if sequence.owner < self._rounds:
            self._ttft_ms.append(now_ms - sequence.queued_ms + frontend_ms(self._prompt))

    def finished(self, sequence: Sequence, now_ms: float) -> None:
        """The client asks again."""
        first_ms = sequence.first_token_ms
        if sequence.owner < self._rounds and self._output > 1 and first_ms is not None:
            self._tpot_ms.append((now_ms - first_ms) / (self._output - 1))
        if sequence.owner > 1:
            # The front end's time lies between two requests of a client.
            self._events.at(now_ms + frontend_ms(self._prompt), self._ask, sequence.owner - 1)
