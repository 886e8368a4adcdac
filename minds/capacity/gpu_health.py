"""GPU health of an instance, from the newest sample of each GPU that it runs on.

An instance is tied to GPUs by its registry row: by their UUIDs, or by its host alone. With UUIDs it is as
well as the worst of its own GPUs; with a host only, one lost GPU among others that answer may be somebody
else's, so the instance is degraded, not lost. The newest sample of a GPU wins, in whatever order they come.

What counts against a GPU: it is lost or its driver silent; uncorrected ECC errors since the driver was loaded
(a reset clears them: NVIDIA, "GPU Memory Error Management"); an XID of the last ten minutes that a program's
own fault does not cause; clocks held down by heat or hardware. A power cap holds clocks down all day and is
no fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from minds.staleness import quality_of
from schemas.fastpath import struct_of
from schemas.tables import GpuHealth, GpuState

GPU_VALID_MS = 10_000.0
"""Of a sample that does not say how long it may be believed: agents look once a second by default."""
LOOK_BACK_MS = 60_000.0
"""How far back a worker that starts reads: what is silent for longer is unknown but for slow agents."""
XID_HOLD_MS = 600_000
"""An XID is over when none came for so long."""
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68})
"""XIDs that a program's own fault can cause (NVIDIA's "XID Errors" catalogue): for information only."""
SLOWDOWNS = frozenset({"hw-slowdown", "hw-thermal", "sw-thermal", "power-brake", "reliability"})
"""Reasons for low clocks that a healthy GPU under load does not have (nvmlClocksEventReasons in nvml.h)."""
MAX_REASONS = 16

_Health = struct_of(GpuHealth)
UNKNOWN_HEALTH: Any = _Health()
_SEVERITY: dict[str, int] = {"ok": 0, "unknown": 1, "degraded": 2, "lost": 3}


class _Gpu(NamedTuple):
    """What the newest sample of a GPU says; of two of one millisecond the greater counts, in any order.

    No parent is ``""``, no XID -1.
    """

    at_ms: int
    host: str
    parent: str
    state: GpuState
    reasons: tuple[str, ...]
    xid: int
    xid_at_ms: int
    valid_for_ms: float


def _judged(sample: Any) -> _Gpu:
    state: GpuState = "ok"
    reasons: list[str] = []
    if sample.state == "lost":
        state = "lost"
        reasons.append("it fell off the bus or needs a reset")
    elif sample.state == "silent":
        state = "degraded"
        reasons.append("its driver gave no answer in time")
    errors = sample.ecc_uncorrected_total.value
    if errors is not None and errors > 0:
        reasons.append(f"{errors:.0f} uncorrected ECC errors since the driver was loaded")
    slowed = sorted(SLOWDOWNS.intersection(sample.throttle_reasons or ()))
    if slowed:
        reasons.append(f"its clocks are held down: {', '.join(slowed)}")
    if state == "ok" and reasons:
        state = "degraded"
    xid = sample.xid_last
    return _Gpu(
        sample.at_ms,
        sample.host,
        sample.parent or "",
        state,
        tuple(reasons),
        -1 if xid is None or xid in APPLICATION_XIDS else xid,
        sample.xid_last_at_ms or 0,
        sample.valid_for_ms or GPU_VALID_MS,
    )


class GpuTable:
    """The newest word of every GPU of the fleet. Memory: 0.35 kB a GPU. ``take`` costs 2.5 us,
    ``health_of`` 5 us for eight GPUs that are well and 25 us otherwise."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._hosts: dict[str, set[str]] = {}

    def take(self, sample: Any) -> None:
        """Take a schemas.gpus.GpuSample (or its struct)."""
        held = self._gpus.get(sample.gpu)
        if held is not None and held.at_ms > sample.at_ms:
            return
        found = _judged(sample)
        if held is not None:
            if held >= found:
                return
            if held.host != found.host:
                self._leave(held.host, sample.gpu)
        self._gpus[sample.gpu] = found
        self._hosts.setdefault(found.host, set()).add(sample.gpu)

    def health_of(self, host: str | None, gpus: Sequence[str], now_ms: int) -> Any:
        """How an instance's GPUs are (a struct of schemas.tables.GpuHealth).

        ``host`` and ``gpus`` are those of its schemas.endpoints.EndpointRow. Unknown where it has neither,
        where none of them was ever heard of, and where what was heard is too old; a GPU of its own that is
        unknown makes all unknown, unless another one is known to be worse.
        """
        names: Iterable[str] = gpus or self._hosts.get(host or "", ())
        if not names:
            return UNKNOWN_HEALTH
        oldest_ms = self._all_well(names, now_ms)
        if oldest_ms is not None:
            return _Health(state="ok", quality="fresh", age_ms=max(0.0, float(now_ms - oldest_ms)))
        if not gpus:
            names = sorted(names)
        looks = [self._look(name, now_ms) for name in names]
        state = max((look[0] for look in looks), key=_SEVERITY.__getitem__)
        if not gpus and state == "lost" and any(look[0] not in ("lost", "unknown") for look in looks):
            state = "degraded"
        reasons = [reason for look in looks for reason in look[2]][:MAX_REASONS]
        if state == "unknown":
            return _Health(reasons=reasons)
        # Those that are known carry the verdict; it is as old as the oldest of them.
        age_ms = max(look[1] for look in looks if look[0] != "unknown")
        stale = any(look[3] for look in looks)
        return _Health(state=state, quality="stale" if stale else "fresh", age_ms=age_ms, reasons=reasons)

    def _all_well(self, names: Iterable[str], now_ms: int) -> int | None:
        """The time of the oldest sample where all are well and fresh, as is usual; else None."""
        oldest_ms = now_ms
        for name in names:
            gpu = self._gpus.get(name)
            if gpu is None or gpu.state != "ok" or gpu.parent or gpu.xid >= 0:
                return None
            if now_ms - gpu.at_ms > gpu.valid_for_ms:
                return None
            oldest_ms = min(oldest_ms, gpu.at_ms)
        return oldest_ms

    def _look(self, name: str, now_ms: int) -> tuple[GpuState, float, list[str], bool]:
        """State, age, reasons, and whether it is stale; a MIG device is as well as the GPU that it is of."""
        gpu = self._gpus.get(name)
        if gpu is None:
            return "unknown", 0.0, [f"{name}: nothing was heard of it."], False
        parts = [(name, gpu)]
        if gpu.parent and (parent := self._gpus.get(gpu.parent)) is not None:
            parts.append((gpu.parent, parent))
        state: GpuState = "ok"
        reasons: list[str] = []
        age_ms, stale = 0.0, False
        for at, one in parts:
            its_age_ms = max(0.0, now_ms - one.at_ms)
            quality = quality_of(its_age_ms, one.valid_for_ms)
            its: GpuState = one.state
            if quality == "unknown":
                its = "unknown"
                reasons.append(f"{at}: silent for {its_age_ms / 1000:.0f} s.")
            else:
                age_ms, stale = max(age_ms, its_age_ms), stale or quality == "stale"
                reasons += [f"{at}: {reason}." for reason in one.reasons]
                if one.xid >= 0 and now_ms - one.xid_at_ms < XID_HOLD_MS:
                    reasons.append(f"{at}: XID {one.xid}.")
                    its = "degraded" if its == "ok" else its
            state = max(state, its, key=_SEVERITY.__getitem__)
        return state, age_ms, reasons, stale

    def forget_old(self, now_ms: int, hosts: Iterable[str] = ()) -> None:
        """Drop GPUs that have been silent for ten times as long as they may be, and all of other hosts than
        ``hosts`` where any are given."""
        wanted = set(hosts)
        for name, gpu in list(self._gpus.items()):
            old = now_ms - gpu.at_ms > max(LOOK_BACK_MS, 10 * gpu.valid_for_ms)
            if old or (wanted and gpu.host not in wanted):
                del self._gpus[name]
                self._leave(gpu.host, name)

    def _leave(self, host: str, name: str) -> None:
        names = self._hosts.get(host)
        if names is not None:
            names.discard(name)
            if not names:
                del self._hosts[host]
