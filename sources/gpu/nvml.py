"""NVML, the driver's own interface, through pynvml: each call as plain data or one of three failures.

All calls here block, some for long where a GPU is in trouble: they belong in a ``BoundedThread``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_THROTTLES = {
    0x1: "idle",
    0x2: "clocks-setting",
    0x4: "power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "power-brake",
    0x100: "display-clock",
    0x200: "board-limit",
    0x400: "reliability",
}
"""The bits of nvmlClocksEventReasons in nvml.h."""
MAX_NVLINKS = 36
_EVENT_WAIT_MS = 500


class NvmlUnavailable(Exception):  # noqa: N818 - reads as what happened
    """No GPU of this host can be read; the sentence says why and what to do."""


class GpuLost(Exception):  # noqa: N818 - reads as what happened
    """This GPU fell off the bus or needs a reset; the sentence says which."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as it is found. ``handle`` is NVML's and good until NVML is closed."""

    uuid: str
    index: int
    product: str
    handle: Any = field(repr=False, compare=False)


@dataclass(slots=True)
class Look:
    """What a GPU says of itself: numbers by the names of GpuSample's readings; what is missing is unknown."""

    readings: dict[str, float] = field(default_factory=dict)
    throttle_reasons: list[str] | None = None
    mig_enabled: bool | None = None
    parts: list[tuple[str, int, dict[str, float]]] = field(default_factory=list)
    """MIG devices: UUID, number and readings."""


_Query = tuple[str, Callable[[Any, Any], Any], float, float, float]
"""Reading, call, factor, and the least and greatest value that can be meant: drivers say 2^32 - 1 and the
like for what they do not know."""

_QUICK: tuple[_Query, ...] = (
    ("utilization_ratio", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu, 0.01, 0, 1),
    ("memory_busy_ratio", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory, 0.01, 0, 1),
    ("memory_used_bytes", lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used, 1, 0, 2**50),
    ("memory_total_bytes", lambda n, h: n.nvmlDeviceGetMemoryInfo(h).total, 1, 1, 2**50),
    ("power_w", lambda n, h: n.nvmlDeviceGetPowerUsage(h), 0.001, 0, 20_000),
    ("power_limit_w", lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h), 0.001, 1, 20_000),
    ("temperature_c", lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU), 1, 0, 200),
    ("sm_clock_mhz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), 1, 0, 20_000),
    ("memory_clock_mhz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM), 1, 0, 50_000),
)
_SLOW: tuple[_Query, ...] = (
    ("ecc_corrected_total", lambda n, h: _ecc(n, h, n.NVML_MEMORY_ERROR_TYPE_CORRECTED), 1, 0, 2**53),
    ("ecc_uncorrected_total", lambda n, h: _ecc(n, h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED), 1, 0, 2**53),
    ("nvlinks_active", lambda n, h: _nvlinks_active(n, h), 1, 0, MAX_NVLINKS),
    ("nvlink_errors_total", lambda n, h: _nvlink_errors(n, h), 1, 0, 2**53),
)
SLOW_READINGS = frozenset(query[0] for query in _SLOW)


class Nvml:
    """The library, open. Opening raises NvmlUnavailable."""

    def __init__(self) -> None:
        self.listening: frozenset[str] = frozenset()
        """The UUIDs of the GPUs whose XIDs are heard now."""
        try:
            import pynvml
        except ImportError:
            raise NvmlUnavailable(
                "The package nvidia-ml-py is not installed; pip install 'tokenfleet[sources]' brings it."
            ) from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(_why_closed(pynvml, error)) from None

    def close(self) -> None:
        """Close it; handles are worth nothing afterwards."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # it was not open any more

    def devices(self) -> tuple[list[Device], list[str]]:
        """The GPUs that answer, and sentences on those that do not; raises NvmlUnavailable."""
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML does not say how many GPUs there are: {error}.") from None
        found, trouble = [], []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, product = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            except (nvml.NVMLError, UnicodeDecodeError) as error:
                trouble.append(f"GPU {index} can't be opened: {error}.")
                continue
            found.append(Device(_name(uuid), index, str(product)[:100], handle))
        return found, trouble

    def look(self, device: Device, *, slow_too: bool) -> Look:
        """Ask a GPU for everything (with ``slow_too`` for errors, links and MIG as well); raises GpuLost."""
        look = Look(self._ask(device.handle, _QUICK, whole=True))
        reasons = self._try(self._nvml.nvmlDeviceGetCurrentClocksEventReasons, device.handle)
        if reasons is not None:
            look.throttle_reasons = [name for bit, name in _THROTTLES.items() if reasons & bit]
        if slow_too:
            look.readings |= self._ask(device.handle, _SLOW)
        modes = self._try(self._nvml.nvmlDeviceGetMigMode, device.handle)
        look.mig_enabled = None if modes is None else modes[0] == 1
        if look.mig_enabled:
            look.parts = self._mig(device)
        return look

    def _mig(self, device: Device) -> list[tuple[str, int, dict[str, float]]]:
        nvml, parts = self._nvml, []
        for number in range(self._try(nvml.nvmlDeviceGetMaxMigDeviceCount, device.handle) or 0):
            handle = self._try(nvml.nvmlDeviceGetMigDeviceHandleByIndex, device.handle, number)
            uuid = None if handle is None else self._try(nvml.nvmlDeviceGetUUID, handle)
            if uuid is not None:
                parts.append((_name(uuid), number, self._ask(handle, _QUICK)))
        return parts

    def _ask(self, handle: Any, queries: tuple[_Query, ...], *, whole: bool = False) -> dict[str, float]:
        found: dict[str, float] = {}
        failed: set[str] = set()
        for name, call, factor, least, greatest in queries:
            value = self._try(call, self._nvml, handle, failed=failed)
            if value is not None and least <= value * factor <= greatest:
                found[name] = value * factor
        if whole and not found and failed:
            raise GpuLost(f"It answers nothing at all: {', '.join(sorted(failed))}")
        return found

    def _try(self, call: Callable[..., Any], *arguments: Any, failed: set[str] | None = None) -> Any:
        """The answer, or None for what this GPU does not tell; raises GpuLost."""
        nvml = self._nvml
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost("It fell off the bus or is not reachable any more") from None
            if error.value == nvml.NVML_ERROR_RESET_REQUIRED:
                raise GpuLost("It needs a reset before it can be used again") from None
            unusual = error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if failed is not None and unusual:
                failed.add(str(error))
            return None

    def listen(self, devices: list[Device], heard: Callable[[str, int], None], stop: threading.Event) -> None:
        """Call ``heard`` with UUID and number of each XID until ``stop``; each wait is bounded.

        Returns at once where no GPU can tell of any.
        """
        nvml, listening = self._nvml, {}
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        try:
            for device in devices:
                if self._registers(device, events):
                    listening[_address(device.handle)] = device.uuid
            self.listening = frozenset(listening.values())
            while listening and not stop.is_set():
                try:
                    event = nvml.nvmlEventSetWait_v2(events, _EVENT_WAIT_MS)
                except nvml.NVMLError as error:
                    if error.value != nvml.NVML_ERROR_TIMEOUT:
                        stop.wait(_EVENT_WAIT_MS / 1000)  # such as of a lost GPU: the others go on
                    continue
                if event.eventType & nvml.nvmlEventTypeXidCriticalError:
                    heard(listening.get(_address(event.device), ""), int(event.eventData))
        finally:
            self.listening = frozenset()
            nvml.nvmlEventSetFree(events)

    def _registers(self, device: Device, events: Any) -> bool:
        try:
            self._nvml.nvmlDeviceRegisterEvents(
                device.handle, self._nvml.nvmlEventTypeXidCriticalError, events
            )
        except self._nvml.NVMLError:
            return False
        return True


def _why_closed(nvml: Any, error: Any) -> str:
    known = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
            "There is no libnvidia-ml.so.1 here, so no NVIDIA driver (in a container: it is not passed in); "
            "leave `gpus` out where there is no GPU."
        ),
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            "The NVIDIA driver is not loaded; `nvidia-smi` on the host should say the same."
        ),
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "The driver and its library differ in version: it was updated; restart the host or the container."
        ),
        nvml.NVML_ERROR_NO_PERMISSION: "The agent may not use the NVIDIA driver; check /dev/nvidia*.",
    }
    return known.get(error.value, f"NVML can't be opened: {error}.")


def _ecc(nvml: Any, handle: Any, kind: int) -> int:
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))


def _nvlinks(nvml: Any, handle: Any) -> list[int]:
    active = []
    for link in range(MAX_NVLINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                active.append(link)
        except nvml.NVMLError as error:
            if link == 0 or error.value != nvml.NVML_ERROR_INVALID_ARGUMENT:
                raise
            break  # as many as it has
    return active


def _nvlinks_active(nvml: Any, handle: Any) -> int:
    return len(_nvlinks(nvml, handle))


def _nvlink_errors(nvml: Any, handle: Any) -> int:
    kinds = (
        nvml.NVML_NVLINK_ERROR_DL_REPLAY,
        nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    )
    return sum(
        nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, kind)
        for link in _nvlinks(nvml, handle)
        for kind in kinds
    )


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _name(uuid: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-/" else "-" for letter in uuid)[:120] or "gpu"
