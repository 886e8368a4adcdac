"""Life of one emulated instance: it binds its port, restarts, drains and stops."""

import asyncio
import contextlib
from dataclasses import asdict
from typing import Any

import structlog
from aiohttp import web

from sim.engines.errors import EmulatorError
from sim.engines.realtime import RealtimeEngine
from sim.engines.server import build_app
from sim.engines.spec import InstanceSpec

_log = structlog.get_logger(__name__)

# How long open connections get to write what they have before they are cut.
_CLOSE_TIMEOUT_S = 0.2
# Turns of the event loop until a connection that was accepted just before the listener closed is known to the
# server: one that the server's shutdown overlooks would stay open, unanswered.
_ACCEPT_TICKS = 8


class EmulatedInstance:
    """One engine behind one port. :meth:`start` and :meth:`stop` may alternate; the port stays the same."""

    def __init__(self, spec: InstanceSpec, *, admin: bool = False) -> None:
        self._spec = spec
        self._admin = admin
        self._port = spec.port
        self._engine: RealtimeEngine | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._lifecycle = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def spec(self) -> InstanceSpec:
        """What the instance was made from."""
        return self._spec

    @property
    def engine(self) -> RealtimeEngine:
        """The engine's present life; ``RuntimeError`` while the instance is stopped."""
        if self._engine is None:
            raise RuntimeError(f"Emulated instance {self._spec.instance} is not running.")
        return self._engine

    @property
    def port(self) -> int:
        """The port; 0 before the first start where the spec leaves it open."""
        return self._port

    @property
    def url(self) -> str:
        """Base URL, such as ``http://127.0.0.1:8101``."""
        host = f"[{self._spec.host}]" if ":" in self._spec.host else self._spec.host
        return f"http://{host}:{self._port}"

    def state(self) -> dict[str, Any]:
        """A snapshot for tests: identity, gauges and the scheduler's own counters."""
        engine = self.engine
        scheduler = engine.scheduler
        return {
            "instance": self._spec.instance,
            "started_at_s": engine.started_at_s,
            "frozen": engine.frozen,
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "kv_usage": scheduler.kv_usage,
            "kv_used_blocks": scheduler.kv.used_blocks,
            "kv_cached_blocks": scheduler.kv.cached_blocks,
            "kv_total_blocks": scheduler.kv.total_blocks,
            **asdict(scheduler.counters),
        }

    async def start(self) -> None:
        """Bind and serve; :class:`EmulatorError` when the port can't be had."""
        async with self._lifecycle:
            self._stopping.clear()
            await self._start()

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stop serving. New connections are refused at once; what runs gets ``drain_s`` to finish."""
        self._stopping.set()
        await asyncio.gather(*self._background)
        async with self._lifecycle:
            await self._stop(drain_s)

    async def restart(self, *, down_ms: float = 0.0) -> None:
        """Lose all state as a crashed engine does, with the port closed for ``down_ms``.

        Streams in flight end with an error event. With 0 the listener stays and only the engine is new. A
        :meth:`stop` ends the outage, and the instance stays stopped. ``RuntimeError`` if it is not running.
        """
        async with self._lifecycle:
            old = self.engine
            if down_ms == 0:
                self._engine = RealtimeEngine(self._spec)
                await old.stop()
            else:
                await self._stop(0.0)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), down_ms / 1e3)
                if self._stopping.is_set():
                    return
                await self._start()
        _log.info("emulated engine restarted", instance=self._spec.instance, down_ms=down_ms)

    def restart_soon(self, down_ms: float) -> None:
        """:meth:`restart` in the background, so that the request that asks for it can still be answered."""
        task = asyncio.create_task(self._restart_logged(down_ms))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _restart_logged(self, down_ms: float) -> None:
        try:
            await self.restart(down_ms=down_ms)
        except (EmulatorError, RuntimeError) as error:
            _log.error("emulated engine stays down", instance=self._spec.instance, error=str(error))

    async def _start(self) -> None:
        if self._runner is not None:
            return
        self._engine = RealtimeEngine(self._spec)
        runner = web.AppRunner(
            build_app(self, admin=self._admin),
            access_log=None,
            handler_cancellation=True,  # a client that goes away cancels its request
            shutdown_timeout=_CLOSE_TIMEOUT_S,
        )
        await runner.setup()
        site = web.TCPSite(runner, self._spec.host, self._port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._engine.stop()
            self._engine = None
            await runner.cleanup()
            raise EmulatorError(
                f"Emulated instance {self._spec.instance} can't listen on {self._spec.host}:{self._port} "
                f"({error.strerror or error}). Choose another port, or 0 for any free one."
            ) from error
        self._runner, self._site = runner, site
        if self._port == 0:
            self._port = int(runner.addresses[0][1])

    async def _stop(self, drain_s: float) -> None:
        if self._runner is None or self._site is None or self._engine is None:
            return
        await self._site.stop()
        if drain_s > 0:
            try:
                await asyncio.wait_for(self._engine.until_idle(), drain_s)
            except TimeoutError:
                _log.warning("emulated engine did not drain in time", instance=self._spec.instance)
        await self._engine.stop()
        for _ in range(_ACCEPT_TICKS):
            await asyncio.sleep(0)
        await self._runner.cleanup()
        self._runner = self._site = self._engine = None
