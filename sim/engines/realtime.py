"""The scheduler in real time: one step loop per instance, and the requests that wait for its tokens.

A step that the model says takes d ms is slept for d / speed. Steps follow one another on a schedule (each
ends a duration after the last one should have), so late timers don't add up; after a real stall (the process
was stopped, say) the schedule starts anew rather than rushing to catch up. All time stamps are those of the
machine's monotonic clock, so what the metrics say is what a client sees, whatever the speed.
"""

import asyncio
import contextlib
import time
from typing import Final
from uuid import uuid4

import structlog

from sim.engine import EngineRequest, EngineScheduler, FinishedRequest, StepResult
from sim.engines.errors import ApiError, engine_died, queue_full
from sim.engines.metrics import EngineMetrics
from sim.engines.spec import InstanceSpec
from sim.engines.text import Generation

_MAX_LAG_S: Final = 0.25

_log = structlog.get_logger(__name__)


class LiveRequest:
    """A request in the engine: how many of its tokens exist, and a way to wait for more."""

    __slots__ = (
        "_per_token",
        "_waiter",
        "failure",
        "finished",
        "generation",
        "produced_tokens",
        "request_id",
    )

    def __init__(self, request_id: str, generation: Generation, *, per_token: bool) -> None:
        """``per_token``: wake the waiter with every token (a stream), not only at the end."""
        self.request_id = request_id
        self.generation = generation
        self.produced_tokens = 0
        self.finished = False
        self.failure: ApiError | None = None
        self._per_token = per_token
        self._waiter: asyncio.Future[None] | None = None

    async def more(self, than_tokens: int) -> int:
        """Wait until there are more than ``than_tokens`` tokens, or the end; returns how many there are.

        Raises the :class:`ApiError` that ended the request, once all tokens before it have been returned.
        """
        while not self.finished and self.failure is None:
            if self._per_token and self.produced_tokens > than_tokens:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.failure is not None and (self.produced_tokens <= than_tokens or not self._per_token):
            raise self.failure
        return self.produced_tokens

    def add_token(self) -> None:
        """The engine generated a token."""
        self.produced_tokens += 1
        if self._per_token:
            self._wake()

    def finish(self) -> None:
        """The engine generated the last token."""
        self.finished = True
        self._wake()

    def fail(self, error: ApiError) -> None:
        """The engine won't go on with this request."""
        self.failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RealtimeEngine:
    """One life of an emulated engine, from start to stop; a restart makes a new object."""

    def __init__(self, spec: InstanceSpec) -> None:
        self.spec = spec
        self.started_at_s = time.time()
        self.scheduler = EngineScheduler(
            spec.step_params,
            kv_tokens=spec.kv_tokens,
            block_tokens=spec.block_tokens,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            max_num_seqs=spec.max_num_seqs,
        )
        self.metrics = EngineMetrics(spec, self.scheduler, self.started_at_s)
        self._live: dict[str, LiveRequest] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._frozen_until_ms = 0.0
        self._thaw = asyncio.Event()
        self._stopped = False
        self._task = asyncio.create_task(self._run(), name=f"engine {spec.instance}")

    @staticmethod
    def now_ms() -> float:
        """The clock of all time stamps of the engine, in ms."""
        return time.monotonic() * 1e3

    @property
    def frozen(self) -> bool:
        """Whether the step loop stands still because of :meth:`freeze`."""
        return self.now_ms() < self._frozen_until_ms

    def open(self, generation: Generation, arrival_ms: float, *, per_token: bool) -> LiveRequest:
        """Queue a request that arrived at ``arrival_ms``; :class:`ApiError` 503 when the queue is full.

        Whoever opens a request has to :meth:`close` it, whatever happens.
        """
        if self._stopped:
            raise engine_died()
        limit = self.spec.max_queued_requests
        if limit is not None and self.scheduler.waiting >= limit:
            self.metrics.count_rejection()
            raise queue_full(limit)
        live = LiveRequest(uuid4().hex, generation, per_token=per_token)
        request = EngineRequest(
            request_id=live.request_id,
            prompt_tokens=generation.prompt_tokens,
            output_tokens=len(generation.words),
            block_hashes=generation.block_hashes,
            ends_with=generation.finish_reason,
        )
        self.scheduler.submit(request, self.now_ms(), arrival_ms)
        self._live[live.request_id] = live
        self._idle.clear()
        self._wake.set()
        return live

    def close(self, live: LiveRequest) -> None:
        """The caller is done with ``live``; if it still ran, it is cancelled and its KV is free at once."""
        self.scheduler.cancel(live.request_id)
        self._forget(live.request_id)

    def freeze(self, duration_ms: float) -> None:
        """Let the step loop stand still for ``duration_ms`` from now (0: go on). HTTP goes on answering."""
        self._frozen_until_ms = self.now_ms() + duration_ms
        self._thaw.set()

    async def until_idle(self) -> None:
        """Wait until no request is open."""
        await self._idle.wait()

    async def stop(self) -> None:
        """End this life: what is in flight fails as it does when vLLM's engine process dies."""
        self._stopped = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all()

    async def _run(self) -> None:
        try:
            await self._step_for_ever()
        except Exception:
            self._stopped = True
            _log.exception("the step loop of an emulated engine failed", instance=self.spec.instance)
            self._fail_all()

    async def _step_for_ever(self) -> None:
        clock = time.monotonic
        due_s = clock()
        while True:
            duration_ms = self.scheduler.start_step(self.now_ms())
            if duration_ms is None:
                self._wake.clear()
                await self._wake.wait()
                due_s = clock()
                continue
            now_s = clock()
            due_s = max(due_s, now_s - _MAX_LAG_S) + duration_ms / 1e3 / self.spec.speed
            await asyncio.sleep(max(0.0, due_s - now_s))
            if self.frozen:
                await self._until_thawed()
                due_s = clock()
            self._deliver(self.scheduler.finish_step(self.now_ms()))

    async def _until_thawed(self) -> None:
        while (rest_ms := self._frozen_until_ms - self.now_ms()) > 0:
            self._thaw.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._thaw.wait(), rest_ms / 1e3)

    def _deliver(self, result: StepResult) -> None:
        live = self._live
        for request_id in result.tokens:
            live[request_id].add_token()
        self.metrics.observe_step(result)
        for done in result.finished:
            self._complete(done)

    def _complete(self, done: FinishedRequest) -> None:
        request = self._live[done.request_id]
        self.metrics.observe_finished(done, request.generation.max_tokens)
        request.finish()

    def _fail_all(self) -> None:
        for request in list(self._live.values()):
            if not request.finished:
                request.fail(engine_died())

    def _forget(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        if not self._live:
            self._idle.set()
