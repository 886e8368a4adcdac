"""The holder: a router's leases and floors, and what it has in flight under them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minds.leases.terms import FORGET_MS, LeaseLike, PoolKey
from schemas.routers import Demand


@dataclass(slots=True)
class Ticket:
    """The right under which one attempt is in flight; give it back with ``Holder.finish``."""

    region: str
    pool: str
    service_class: str
    work_tokens: float
    under: str
    """``lease``, ``floor`` or ``uncapped``."""
    lease_id: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing could be admitted now. ``retry_after_ms`` is a guess: the next grants come by then."""

    rule: str
    reason: str
    retry_after_ms: float = 1000.0


@dataclass(slots=True)
class _Held:
    lease_id: str | None = None
    work_tokens: float = 0.0
    expires_ms: float = 0.0
    stamp: tuple[int, int] | None = None
    in_flight: float = 0.0
    wanted_extra: float = 0.0
    wanted_at_ms: float = 0.0


@dataclass(slots=True)
class _Floor:
    work_tokens: float = 0.0
    in_flight: float = 0.0


class Holder:
    """A router's leases and what it has in flight under them. Times are its own monotonic clock in ms."""

    WANT_HALF_LIFE_MS = 1000.0
    KEPT_REQUESTS = 600

    def __init__(self, name: str, boot: str, *, floor_valid_ms: float = FORGET_MS) -> None:
        self.name = name
        self.boot = boot
        self._floor_valid_ms = floor_valid_ms
        self._sent: dict[int, float] = {}
        self._held: dict[PoolKey, _Held] = {}
        self._floors: dict[tuple[str, str], _Floor] = {}
        self._last_answer_ms: float | None = None

    def sent(self, request_seq: int, now_ms: float) -> None:
        """A heartbeat is about to go out: leases that answer it count from this moment."""
        self._sent[request_seq] = now_ms
        while len(self._sent) > self.KEPT_REQUESTS:
            del self._sent[next(iter(self._sent))]

    def received(self, lease: LeaseLike, now_ms: float) -> bool:
        """Take a lease up; False where it isn't ours, is not newer, answers nothing we sent, or is over."""
        sent_ms = self._sent.get(lease.request_seq)
        if lease.holder != self.name or lease.holder_boot != self.boot or sent_ms is None:
            return False
        held = self._held.setdefault((lease.region, lease.pool, lease.service_class), _Held())
        stamp = (lease.epoch, lease.version)
        if held.stamp is not None and stamp <= held.stamp:
            return False
        held.stamp, held.lease_id = stamp, lease.lease_id
        held.work_tokens, held.expires_ms = lease.work_tokens, sent_ms + lease.duration_ms
        self._floors.setdefault((lease.region, lease.pool), _Floor()).work_tokens = lease.floor_work_tokens
        self._last_answer_ms = sent_ms if self._last_answer_ms is None else max(self._last_answer_ms, sent_ms)
        return now_ms < held.expires_ms

    def headroom(self, region: str, pool: str, service_class: str, now_ms: float) -> float:
        """What could be admitted right now, in work tokens: under the lease or the floor, the larger."""
        held = self._held.get((region, pool, service_class))
        lease = held.work_tokens - held.in_flight if held and now_ms < held.expires_ms else 0.0
        return max(0.0, lease, self._floor_headroom(region, pool, now_ms))

    def _floor_headroom(self, region: str, pool: str, now_ms: float) -> float:
        floor = self._floors.get((region, pool))
        if floor is None or self._last_answer_ms is None:
            return 0.0
        if now_ms - self._last_answer_ms > self._floor_valid_ms:
            return 0.0
        return floor.work_tokens - floor.in_flight

    def admit(
        self, region: str, pool: str, service_class: str, work_tokens: float, now_ms: float
    ) -> Ticket | Refusal:
        """Admit work under the lease, else under the floor, else refuse and note the demand."""
        held = self._held.setdefault((region, pool, service_class), _Held())
        if now_ms < held.expires_ms and held.in_flight + work_tokens <= held.work_tokens:
            held.in_flight += work_tokens
            return Ticket(region, pool, service_class, work_tokens, "lease", held.lease_id)
        if work_tokens <= self._floor_headroom(region, pool, now_ms):
            self._floors[region, pool].in_flight += work_tokens
            return Ticket(region, pool, service_class, work_tokens, "floor")
        self.want(region, pool, service_class, work_tokens, now_ms)
        if held.stamp is None:
            reason = f"No lease for {service_class} in {region} has been granted to {self.name} yet."
        elif now_ms >= held.expires_ms:
            reason = f"The lease for {service_class} in {region} ended {now_ms - held.expires_ms:.0f} ms ago."
        else:
            reason = (
                f"{held.in_flight:.0f} of the {held.work_tokens:.0f} work tokens leased for {service_class} "
                f"in {region} are in flight; this needs {work_tokens:.0f}."
            )
        return Refusal("no_lease_headroom", reason)

    def admit_uncapped(self, region: str, pool: str, service_class: str, work_tokens: float) -> Ticket:
        """For pools without a cap: nothing is counted against a lease."""
        return Ticket(region, pool, service_class, work_tokens, "uncapped")

    def finish(self, ticket: Ticket) -> None:
        """The attempt ended, however it did. A second call changes nothing."""
        if ticket.done:
            return
        ticket.done = True
        if ticket.under == "lease":
            held = self._held[ticket.region, ticket.pool, ticket.service_class]
            held.in_flight = max(0.0, held.in_flight - ticket.work_tokens)
        elif ticket.under == "floor":
            floor = self._floors[ticket.region, ticket.pool]
            floor.in_flight = max(0.0, floor.in_flight - ticket.work_tokens)

    def want(self, region: str, pool: str, service_class: str, work_tokens: float, now_ms: float) -> None:
        """Note work that could not be admitted: the next report asks for it. Fades by half each second."""
        held = self._held.setdefault((region, pool, service_class), _Held())
        held.wanted_extra = self._faded(held, now_ms) + work_tokens
        held.wanted_at_ms = now_ms

    def _faded(self, held: _Held, now_ms: float) -> float:
        halves: float = (now_ms - held.wanted_at_ms) / self.WANT_HALF_LIFE_MS
        return held.wanted_extra * math.pow(0.5, max(0.0, halves))

    def demands(self, now_ms: float) -> list[Demand]:
        """What the next heartbeat reports. In flight plus a half as much again, plus what was refused."""
        return [
            Demand(
                region=region,
                pool=pool,
                service_class=service_class,
                in_flight_work_tokens=held.in_flight,
                wanted_work_tokens=1.5 * held.in_flight + self._faded(held, now_ms),
                held_epoch=held.stamp[0] if held.stamp else None,
                held_version=held.stamp[1] if held.stamp else None,
            )
            for (region, pool, service_class), held in self._held.items()
        ]
