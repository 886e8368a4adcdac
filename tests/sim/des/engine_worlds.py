"""Two ways to play one script of arrivals and cancels: the fast instance, and the plain scheduler."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sim.des.events import EventQueue
from sim.des.instance import Instance
from sim.des.sequence import Sequence
from sim.engine import EngineRequest, EngineScheduler, StepParams

BLOCK = 512


@dataclass(frozen=True)
class Arrival:
    """One request of a script; ``cancel_after_ms`` counts from the arrival."""

    at_ms: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    cancel_after_ms: float | None = None


@dataclass(frozen=True)
class Engine:
    """The engine that plays it."""

    params: StepParams
    kv_tokens: int = 100_000
    unit_tokens: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256


@dataclass
class Played:
    """Token times and counters of a whole script; all of it but the times must be equal exactly."""

    token_times_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    finished: list[int] = field(default_factory=list)
    cancelled: dict[int, bool] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    preemptions: dict[int, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    used_units_after_cancels: list[int] = field(default_factory=list)
    end_ms: float = 0.0


class _Collector:
    def __init__(self, played: Played) -> None:
        self.played = played

    def first_token(self, sequence: Sequence, now_ms: float) -> None:
        assert sequence.first_token_ms == now_ms

    def finished(self, sequence: Sequence, now_ms: float) -> None:
        number = sequence.owner
        self.played.finished.append(number)
        self.played.end_ms = now_ms


def play_fast(script: list[Arrival], engine: Engine, *, max_run_steps: int | None = None) -> Played:
    """The script on :class:`Instance`; the books are checked at every event of the script."""
    played = Played()
    events = EventQueue()
    instance = Instance(
        engine.params,
        events,
        _Collector(played),
        kv_tokens=engine.kv_tokens,
        unit_tokens=engine.unit_tokens,
        block_tokens=BLOCK,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_run_steps=max_run_steps,
    )
    sequences = [
        Sequence(a.prompt_tokens, a.output_tokens, a.blocks, number) for number, a in enumerate(script)
    ]

    def tokens(
        start_ms: float, first_ms: float, slope_ms: float, steps: int, decoders: list[Sequence]
    ) -> None:
        for sequence in decoders:
            for i in range(1, steps + 1):
                end_ms = start_ms + i * first_ms + slope_ms * (0.5 * i * (i - 1))
                played.token_times_ms[sequence.owner].append(end_ms)
        for sequence, chunk in instance._prefills:
            total = sequence.prompt_tokens + sequence.generated_tokens
            if sequence.state == 1 and sequence.computed_tokens + chunk == total:
                played.token_times_ms[sequence.owner].append(start_ms + first_ms)

    instance.observer = tokens

    def submit(now_ms: float, number: int) -> None:
        instance.submit(sequences[number], now_ms)
        check()

    def cancel(now_ms: float, number: int) -> None:
        played.cancelled[number] = instance.cancel(sequences[number], now_ms)
        usage = instance.reading(now_ms).kv_usage
        played.used_units_after_cancels.append(round(usage * instance.pool.total_units))
        check()

    def check() -> None:
        instance.pool.check()
        assert instance.active or not (instance.running or instance.waiting), "work lies idle"

    for number, arrival in enumerate(script):
        events.at(arrival.at_ms, submit, number)
        if arrival.cancel_after_ms is not None:
            events.at(arrival.at_ms + arrival.cancel_after_ms, cancel, number)
    events.run()
    check()
    assert instance.pool.used_units == 0
    for number, sequence in enumerate(sequences):
        played.preemptions[number] = sequence.preemptions
        played.cached_tokens[number] = sequence.cached_tokens
    played.counters = {
        "generation": instance.generation_tokens,
        "preemptions": instance.preemptions,
        "hits": instance.prefix_hit_tokens,
        "queries": instance.prefix_query_tokens,
        "steps": instance.steps,
    }
    return played


def play_plain(script: list[Arrival], engine: Engine) -> Played:
    """The script on :class:`EngineScheduler`, step by step; its blocks are as large as the units."""
    played = Played()
    scheduler = EngineScheduler(
        engine.params,
        kv_tokens=engine.kv_tokens,
        block_tokens=engine.unit_tokens,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
    )
    parts = BLOCK // engine.unit_tokens
    inputs: list[tuple[float, int, str, int]] = []
    for number, arrival in enumerate(script):
        inputs.append((arrival.at_ms, len(inputs), "submit", number))
        if arrival.cancel_after_ms is not None:
            inputs.append((arrival.at_ms + arrival.cancel_after_ms, len(inputs), "cancel", number))
    inputs.sort()
    started: set[int] = set()
    end_ms: float | None = None
    steps = 0
    index = 0

    def begin(now_ms: float) -> float | None:
        nonlocal steps
        duration_ms = scheduler.start_step(now_ms)
        if duration_ms is None:
            return None
        steps += 1
        return now_ms + duration_ms

    while index < len(inputs) or end_ms is not None:
        if end_ms is not None and (index == len(inputs) or end_ms <= inputs[index][0]):
            result = scheduler.finish_step(end_ms)
            for token in result.tokens:
                played.token_times_ms[int(token)].append(end_ms)
            for done in result.finished:
                number = int(done.request_id)
                played.finished.append(number)
                played.end_ms = end_ms
                played.preemptions[number] = done.preemptions
                played.cached_tokens[number] = done.cached_tokens
            end_ms = begin(end_ms)
            continue
        now_ms, _, kind, number = inputs[index]
        index += 1
        if kind == "submit":
            arrival = script[number]
            hashes = tuple(block * parts + part for block in arrival.blocks for part in range(parts))
            scheduler.submit(
                EngineRequest(str(number), arrival.prompt_tokens, arrival.output_tokens, hashes), now_ms
            )
            started.add(number)
        else:
            played.cancelled[number] = scheduler.cancel(str(number))
            played.used_units_after_cancels.append(scheduler.kv.used_blocks)
        if end_ms is None:
            end_ms = begin(now_ms)
    played.counters = {
        "generation": scheduler.counters.generation_tokens,
        "preemptions": scheduler.counters.preemptions,
        "hits": scheduler.counters.prefix_hit_tokens,
        "queries": scheduler.counters.prefix_query_tokens,
        "steps": steps,
    }
    return played
