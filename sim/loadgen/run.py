"""The run itself: start every intent at its time, whatever became of the others, and keep the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from sim.loadgen.client import (
    AttemptRequest,
    RunClock,
    play_attempt,
    request_body,
    request_headers,
    trace_sent,
)
from sim.loadgen.ledger import AttemptRecord, IntentRecord, Ledger, LiveView
from sim.loadgen.options import LoadOptions
from sim.loadgen.retry import AttemptEnd, Cause, RetryPolicy, cancel_after_tokens, final_cause
from sim.loadgen.sse import CompletionStream
from sim.workloads.plan import IntentSpec

_log = structlog.get_logger(__name__)

ProgressCallback = Callable[[LiveView], None]


async def run_load(
    plan: Sequence[IntentSpec],
    routers: Mapping[str, Sequence[str]],
    *,
    ledger_path: str | Path,
    seed: int,
    on_progress: ProgressCallback | None = None,
    stop: asyncio.Event | None = None,
    speed: float = 1.0,
    options: LoadOptions | None = None,
) -> Ledger:
    """Play the plan open-loop and return the closed ledger once every started intent has ended.

    `routers` maps each entry region of the plan to the base URLs of its routers, preferred first.
    `speed` is how many ms of the plan pass in one ms of wall time: arrivals, patience, deadlines, SLOs and
    backoff all shrink with it. `stop` ends the arrivals; what is in flight is played to its end. If the
    task is cancelled, open intents are booked as cancelled first. `on_progress` is called with a LiveView
    every `options.progress_every_s` and once at the end; an exception in it is logged and ends the display,
    never the run. Raises ValueError for a plan that doesn't fit `routers`, LedgerError for the file.
    """
    options = options or LoadOptions()
    _check(plan, routers, speed)
    ordered = sorted(plan, key=lambda spec: spec.at_ms)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=options.connect_timeout_ms / speed / 1_000.0)
    with Ledger(ledger_path, planned=len(ordered)) as ledger:
        # No limit on connections: a generator that queues on its own side is no open loop.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, trace_configs=[trace_sent()]
        ) as session:
            player = _Player(session, routers, ledger, RunClock(), options, seed, speed)
            progress = asyncio.create_task(_report(on_progress, player)) if on_progress else None
            try:
                await player.play(ordered, stop or asyncio.Event())
            finally:
                if progress is not None:
                    progress.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await progress
                    _show(on_progress, player)
    return ledger


def _check(plan: Sequence[IntentSpec], routers: Mapping[str, Sequence[str]], speed: float) -> None:
    if not 0 < speed < float("inf"):
        raise ValueError(f"The speed of a run must be a positive number, not {speed}.")
    if len({spec.intent_id for spec in plan}) != len(plan):
        raise ValueError("The plan has intents with the same id; every intent needs one of its own.")
    for region in sorted({spec.entry_region for spec in plan}):
        urls = routers.get(region, ())
        if not urls:
            raise ValueError(f"No router is given for entry region {region!r}, which the plan uses.")
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(
                    f"The router {url!r} of entry region {region!r} is no http:// or https:// URL."
                )


async def _report(on_progress: ProgressCallback | None, player: _Player) -> None:
    while True:
        if not _show(on_progress, player):
            return
        await asyncio.sleep(player.options.progress_every_s)


def _show(on_progress: ProgressCallback | None, player: _Player) -> bool:
    """Call the display; False (and a log line) where it failed."""
    try:
        if on_progress is not None:
            on_progress(player.ledger.live(player.clock.epoch_ms() - player.start_epoch_ms))
    except Exception:
        _log.exception("loadgen.progress_failed")
        return False
    return True


class _Player:
    """Plays intents against routers on one session; everything of one run that does not change."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        routers: Mapping[str, Sequence[str]],
        ledger: Ledger,
        clock: RunClock,
        options: LoadOptions,
        seed: int,
        speed: float,
    ) -> None:
        self.session = session
        self.urls = {
            region: [base.rstrip("/") + options.path for base in bases] for region, bases in routers.items()
        }
        self.ledger = ledger
        self.clock = clock
        self.options = options
        self.seed = seed
        self.speed = speed
        self.start_epoch_ms = clock.epoch_ms()

    async def play(self, ordered: Sequence[IntentSpec], stop: asyncio.Event) -> None:
        """Start each intent when its time has come; return when all have ended."""
        async with asyncio.TaskGroup() as intents:
            for spec in ordered:
                due_epoch_ms = self.start_epoch_ms + spec.at_ms / self.speed
                wait_s = max(0.0, (due_epoch_ms - self.clock.epoch_ms()) / 1_000.0)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait_s)
                if stop.is_set():
                    break
                intents.create_task(self._intent(spec, due_epoch_ms))
                await asyncio.sleep(0)  # when behind, let what is running read its streams

    async def _intent(self, spec: IntentSpec, due_epoch_ms: float) -> None:
        """One intent, whatever happens: it is booked exactly once."""
        start_epoch_ms = self.clock.epoch_ms()
        record = IntentRecord(
            intent_id=spec.intent_id,
            service_class=spec.service_class,
            tenant=spec.tenant,
            entry_region=spec.entry_region,
            residency=spec.residency,
            input_tokens=spec.input_tokens,
            output_tokens=spec.output_tokens,
            at_ms=spec.at_ms,
            lag_ms=max(0.0, start_epoch_ms - due_epoch_ms),
            start_epoch_ms=start_epoch_ms,
            ttft_slo_ms=spec.ttft_slo_ms / self.speed,
            tpot_slo_ms=spec.tpot_slo_ms / self.speed,
            cancel_after_tokens=cancel_after_tokens(spec, self.seed, self.options.cancel_share),
        )
        self.ledger.opened(record)
        try:
            await self._attempts(spec, record)
        except asyncio.CancelledError:
            record.cause, record.error = Cause.CANCELLED, "the load generator was stopped"
            raise
        except Exception as error:
            record.cause, record.error = Cause.FAILED, f"the load generator itself failed: {error!r}"
            _log.exception("loadgen.intent_failed", intent_id=spec.intent_id)
        finally:
            record.finish_epoch_ms = self.clock.epoch_ms()
            self.ledger.closed(record)

    async def _attempts(self, spec: IntentSpec, record: IntentRecord) -> None:
        """Attempts until one settles the intent."""
        urls = self.urls[spec.entry_region]
        body = request_body(spec, self.options)
        policy = RetryPolicy(self.options, random.Random(f"retry-{self.seed}-{spec.intent_id}"))
        waiting = _Patience(
            first_token_by_epoch_ms=record.start_epoch_ms + spec.client_timeout_ms / self.speed,
            finish_by_epoch_ms=record.start_epoch_ms + spec.deadline_ms / self.speed,
        )
        router = 0
        while True:
            now_ms = self.clock.epoch_ms()
            number = len(record.attempts) + 1
            attempt = AttemptRecord(attempt=number, router=urls[router % len(urls)], start_epoch_ms=now_ms)
            record.attempts.append(attempt)
            headers = request_headers(
                spec,
                self.options,
                attempt=number,
                start_epoch_ms=record.start_epoch_ms,
                left_ms=waiting.finish_by_epoch_ms - now_ms,
                speed=self.speed,
            )
            request = AttemptRequest(
                url=attempt.router,
                headers=headers,
                body=body,
                first_token_by_epoch_ms=waiting.until_epoch_ms,
                finish_by_epoch_ms=waiting.finish_by_epoch_ms,
                cancel_after_tokens=record.cancel_after_tokens,
            )
            stream = await play_attempt(self.session, request, attempt, self.clock)
            waiting.got_token |= stream.first_token_ms is not None
            end = attempt.end or AttemptEnd.DROPPED
            retry = policy.after(
                end,
                status=attempt.status,
                retry_after_ms=attempt.retry_after_ms,
                left_ms=(waiting.until_epoch_ms - self.clock.epoch_ms()) * self.speed,
            )
            if retry is None:
                _settle(record, stream)
                return
            router += retry.elsewhere
            await asyncio.sleep(retry.wait_ms / self.speed / 1_000.0)


@dataclass(slots=True)
class _Patience:
    """How long an intent's client waits; once it has seen a token, only the deadline counts."""

    first_token_by_epoch_ms: float
    finish_by_epoch_ms: float
    got_token: bool = False

    @property
    def until_epoch_ms(self) -> float:
        if self.got_token:
            return self.finish_by_epoch_ms
        return min(self.first_token_by_epoch_ms, self.finish_by_epoch_ms)


def _settle(record: IntentRecord, stream: CompletionStream) -> None:
    """Close the intent with what its last attempt brought."""
    record.cause = final_cause([attempt.end or AttemptEnd.DROPPED for attempt in record.attempts])
    record.error = record.attempts[-1].error
    record.tokens = stream.tokens
    record.wasted_tokens = sum(attempt.tokens for attempt in record.attempts[:-1])
    if stream.first_token_ms is not None:
        record.ttft_ms = stream.first_token_ms - record.start_epoch_ms
        if stream.last_token_ms is not None and stream.tokens >= 2:
            record.tpot_ms = (stream.last_token_ms - stream.first_token_ms) / (stream.tokens - 1)
