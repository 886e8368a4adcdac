"""The GPUs of a host, looked at again and again: samples to fleet.gpus, trouble to fleet.alerts.

Each GPU has a thread of its own, so one whose driver hangs silences none of the others; NVML itself is opened
in another. Where GPUs are lost or NVML can't be opened, it is opened anew now and then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import structlog

from minds.capacity.gpu_health import APPLICATION_XIDS, XID_HOLD_MS
from schemas.gpus import GpuSample
from schemas.operations import AlertRow
from schemas.readings import Reading
from schemas.topics import ALERTS, GPUS
from sources.gpu.alerts import GpuAlerts
from sources.gpu.bounded import BoundedThread, Silent
from sources.gpu.config import GpusConfig
from sources.gpu.nvml import SLOW_READINGS, Device, GpuLost, Look, Nvml, NvmlUnavailable
from transport.clock import monotonic_ms, now_ms
from transport.producer import EventProducer

log = structlog.get_logger(__name__)

SLOW_EVERY_MS = 10_000.0
"""Errors and links take many calls and change seldom: their readings carry their age."""
OPEN_EVERY_MS = 30_000.0
_OPEN_TIMEOUT_S = 15.0
_FRESH_INTERVALS = 2.5


class AlertSink(Protocol):
    """Takes alert rows without stamps; ``home`` is the partition key."""

    def put(self, row: AlertRow, home: str) -> None: ...


@dataclass(slots=True)
class _Gpu:
    device: Device
    thread: BoundedThread
    here: bool = True
    """Found when NVML was last opened."""
    slow: dict[str, float] = field(default_factory=dict)
    slow_at_ms: float | None = None
    state: Literal["ok", "lost", "silent"] = "ok"


@dataclass(slots=True)
class _Xids:
    total: int = 0
    last: int | None = None
    at_ms: float = 0.0


class GpuSource:
    """Looks at all GPUs of this host every interval; ``start`` it and ``stop`` it once."""

    topics = (GPUS, ALERTS)

    def __init__(
        self, config: GpusConfig, alerts: AlertSink, *, open_every_ms: float = OPEN_EVERY_MS
    ) -> None:
        self._config = config
        self._sink = alerts
        self._open_every_ms = open_every_ms
        self._host = config.host_name
        self._alerts = GpuAlerts(self._host)
        self._events: EventProducer | None = None
        self._control = BoundedThread("nvml")
        self._nvml: Nvml | None = None
        self._opened_at_ms: float | None = None
        self._gpus: dict[str, _Gpu] = {}
        self._xids: dict[str, _Xids] = {}
        self._xid_lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._listener_stop = threading.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, events: EventProducer) -> None:
        """Begin to look."""
        self._events = events
        self._task = asyncio.create_task(self._run(), name="gpus")

    async def stop(self) -> None:
        """Stop; what hangs in the driver is left to the end of the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._listener_stop.set()
        for gpu in self._gpus.values():
            gpu.thread.close()
        self._control.close()

    def unready(self) -> list[str]:
        """A GPU in trouble is an alert; the agent goes on."""
        return []

    @property
    def firing(self) -> dict[str, str]:
        """What is wrong now, by subject."""
        return self._alerts.firing

    async def _run(self) -> None:
        due_ms = monotonic_ms()
        while True:
            try:
                await self._cycle()
            except Exception:
                log.exception("gpus_failed_inside")
                await asyncio.sleep(1.0)
            due_ms = max(due_ms + self._config.interval_ms, monotonic_ms())
            await asyncio.sleep((due_ms - monotonic_ms()) / 1000)

    async def _cycle(self) -> None:
        if self._should_open():
            await self._open()
        await asyncio.gather(*(self._look_at(gpu) for gpu in list(self._gpus.values())))
        self._tell_xids()

    def _should_open(self) -> bool:
        if self._opened_at_ms is None:
            return True
        wanted = self._nvml is None or any(not gpu.here or gpu.state == "lost" for gpu in self._gpus.values())
        # Closing NVML under a call that hangs could hang too: first that call must return.
        stuck = self._control.stuck or any(gpu.thread.stuck for gpu in self._gpus.values())
        return wanted and not stuck and monotonic_ms() - self._opened_at_ms >= self._open_every_ms

    async def _open(self) -> None:
        self._opened_at_ms = monotonic_ms()
        old, self._nvml = self._nvml, None
        self._listener_stop.set()
        listener = self._listener

        def reopen() -> tuple[Nvml, list[Device], list[str]]:
            if listener is not None:
                listener.join()
            if old is not None:
                old.close()
            nvml = Nvml()
            return nvml, *nvml.devices()

        for gpu in self._gpus.values():
            gpu.here = False
        try:
            nvml, devices, trouble = await self._control.call(reopen, _OPEN_TIMEOUT_S)
        except NvmlUnavailable as error:
            self._fire("nvml", "critical", str(error))
            return
        except Silent:
            self._fire("nvml", "critical", f"NVML did not open within {_OPEN_TIMEOUT_S:g} s.")
            return
        self._nvml = nvml
        for device in devices:
            known = self._gpus.get(device.uuid)
            if known is None:
                self._gpus[device.uuid] = _Gpu(device, BoundedThread(f"gpu-{device.index}"))
            else:
                known.device, known.here = device, True
        if trouble:
            self._fire("nvml", "critical", " ".join(trouble))
        elif not devices:
            self._fire("nvml", "warning", "The NVIDIA driver is there, but no GPU.")
        else:
            self._resolve("nvml", f"NVML is open and tells of {len(devices)} GPUs.")
        self._listen(nvml, devices)
        log.info("gpus_found", gpus=len(devices), host=self._host)

    def _listen(self, nvml: Nvml, devices: list[Device]) -> None:
        stop = self._listener_stop = threading.Event()

        def work() -> None:
            try:
                nvml.listen(devices, self._heard, stop)
            except Exception as error:
                log.error("xid_listener_failed_inside", error=type(error).__name__)

        self._listener = threading.Thread(target=work, name="gpu-xids", daemon=True)
        self._listener.start()

    def _heard(self, uuid: str, number: int) -> None:
        with self._xid_lock:
            xids = self._xids.setdefault(uuid, _Xids())
            xids.total, xids.last, xids.at_ms = xids.total + 1, number, monotonic_ms()

    async def _look_at(self, gpu: _Gpu) -> None:
        nvml, uuid = self._nvml, gpu.device.uuid
        label = f"GPU {gpu.device.index} ({gpu.device.product}, {uuid})"
        if nvml is None or not gpu.here:
            gpu.state = "lost"
            self._emit(gpu, None)
            self._fire(uuid, "critical", f"{label}: the driver does not list it any more.")
            return
        since_slow = None if gpu.slow_at_ms is None else monotonic_ms() - gpu.slow_at_ms
        slow_too = since_slow is None or since_slow >= SLOW_EVERY_MS
        try:
            look = await gpu.thread.call(
                lambda: nvml.look(gpu.device, slow_too=slow_too), self._config.timeout_s
            )
        except GpuLost as error:
            gpu.state = "lost"
            self._fire(uuid, "critical", f"{label}: {error}.")
            self._emit(gpu, None)
        except Silent:
            gpu.state = "silent"
            self._fire(
                uuid, "critical", f"{label}: the driver gave no answer within {self._config.timeout_s:g} s."
            )
            self._emit(gpu, None)
        else:
            gpu.state = "ok"
            if slow_too:
                gpu.slow = {name: look.readings.pop(name) for name in SLOW_READINGS & look.readings.keys()}
                gpu.slow_at_ms = monotonic_ms()
            self._resolve(uuid, f"{label}: it answers.")
            self._emit(gpu, look)

    def _emit(self, gpu: _Gpu, look: Look | None) -> None:
        if self._events is None:
            raise RuntimeError("GPUs have not started.")
        at_ms, device = now_ms(), gpu.device
        valid_for_ms = _FRESH_INTERVALS * (self._config.interval_ms + self._config.timeout_s * 1000)
        readings: dict[str, Reading] = {}
        xids = None
        if look is None:
            gpu.slow, gpu.slow_at_ms = {}, None
        else:
            readings = {name: _fresh(value) for name, value in look.readings.items()}
            age_ms = 0.0 if gpu.slow_at_ms is None else monotonic_ms() - gpu.slow_at_ms
            readings |= {name: _fresh(value, age_ms) for name, value in gpu.slow.items()}
            if self._nvml is not None and device.uuid in self._nvml.listening:
                with self._xid_lock:
                    xids = self._xids.setdefault(device.uuid, _Xids())
                    readings["xid_total"] = _fresh(xids.total)
        self._events.emit(
            GPUS,
            GpuSample(
                host=self._host,
                gpu=device.uuid,
                index=device.index,
                product=device.product,
                at_ms=at_ms,
                state=gpu.state,
                xid_last=None if xids is None else xids.last,
                xid_last_at_ms=None
                if xids is None or xids.last is None
                else at_ms - round(monotonic_ms() - xids.at_ms),
                mig_enabled=None if look is None else look.mig_enabled,
                throttle_reasons=None if look is None else look.throttle_reasons,
                valid_for_ms=valid_for_ms,
                **readings,  # type: ignore[arg-type]
            ),
        )
        for uuid, number, values in () if look is None else look.parts:
            part = GpuSample(
                host=self._host,
                gpu=uuid,
                parent=device.uuid,
                index=number,
                product=device.product,
                at_ms=at_ms,
                state="ok",
                valid_for_ms=valid_for_ms,
                **{name: _fresh(value) for name, value in values.items()},  # type: ignore[arg-type]
            )
            self._events.emit(GPUS, part)

    def _tell_xids(self) -> None:
        with self._xid_lock:
            heard = [(uuid, xids.total, xids.last, xids.at_ms) for uuid, xids in self._xids.items()]
        for uuid, total, last, at_ms in heard:
            subject = f"{uuid or 'unnamed'}/xid"
            if total and monotonic_ms() - at_ms < XID_HOLD_MS:
                severity: Literal["info", "critical"] = "info" if last in APPLICATION_XIDS else "critical"
                self._fire(subject, severity, f"XID {last} of GPU {uuid}; {total} since the agent listens.")
            elif total:
                self._resolve(subject, f"No XID of GPU {uuid} for {XID_HOLD_MS // 60_000} minutes.")

    def _fire(self, subject: str, severity: Literal["info", "warning", "critical"], summary: str) -> None:
        self._put(self._alerts.fire(subject, severity, summary, now_ms()))

    def _resolve(self, subject: str, summary: str) -> None:
        self._put(self._alerts.resolve(subject, summary, now_ms()))

    def _put(self, rows: Iterable[AlertRow]) -> None:
        for row in rows:
            self._sink.put(row, row.alert_id)
            say = log.warning if row.state == "firing" else log.info
            say(f"gpu_alert_{row.state}", alert=row.alert_id, reason=row.summary)


def _fresh(value: float, age_ms: float = 0.0) -> Reading:
    return Reading(value=float(value), quality="fresh", age_ms=age_ms)
