"""Leases: how the region that owns capacity lets others admit work, and never more than its cap.

The invariant: the sum over all holders of (live leases or unfinished work, whichever is more) plus floors
never exceeds the cap at the time of a grant, whatever is delayed, lost or restarted. It rests on four rules:

1. A holder counts a lease from the moment at which it *sent* the request that the lease answers; the grantor
   counts it from the moment of the grant for the duration plus clock skew. The grant is later than the
   request, so the holder's right always ends first, and no clocks are compared (only their rates).
2. A holder admits only while its in-flight work of that class fits its live lease. So after a report of X
   in flight, its unfinished work is at most max(X, every lease that it held then or has taken up since).
   Reports name the newest lease taken up, so the grantor knows which those are.
3. A lease replaces the holder's earlier one; a smaller one frees capacity only once a report names it.
4. A silent holder's work counts until its leases have expired and the longest intent has ended. A new boot
   of the same holder ends the old one's work after the skew: its connections are gone.

A holder also gets a floor with its leases, carved out of the cap for as long as it is known, with which it
goes on while the broker is away. It is granted only when it fits; work under it is counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from schemas.routers import Demand

PoolKey = tuple[str, str, str]
"""(region, pool, service class)."""
FORGET_MS = 3_600_000.0
"""A holder silent for an hour is no longer known: its floor ends, on both sides."""
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The terms of a pool's leases. Times in milliseconds, work in token equivalents."""

    duration_ms: float = 10_000.0
    skew_ms: float = 2_000.0
    floor_work_tokens: float = 0.0
    max_intent_ms: float = 120_000.0
    forget_ms: float = FORGET_MS


class LeaseLike(Protocol):
    """What a lease row says, as a pydantic row or as a struct of the fast path."""

    region: str
    pool: str
    service_class: str
    holder: str
    holder_boot: str
    request_seq: int
    lease_id: str
    work_tokens: float
    exposed_work_tokens: float
    floor_work_tokens: float
    duration_ms: float
    epoch: int
    version: int


class DemandLike(Protocol):
    """See schemas.routers.Demand."""

    region: str
    pool: str
    service_class: str
    in_flight_work_tokens: float
    wanted_work_tokens: float
    held_epoch: int | None
    held_version: int | None


class ReportLike(Protocol):
    """See schemas.routers.RouterRow: a router's heartbeat is its request for leases."""

    router: str
    boot: str
    boot_started_at_ms: int
    version: int
    mode: str
    demands: Sequence[DemandLike]


# ------------------------------------------------------------------------------------------- the grantor


@dataclass(frozen=True, slots=True)
class Grant:
    """One lease to be published: the row without its stamps."""

    service_class: str
    holder: str
    holder_boot: str
    request_seq: int
    version: int
    work_tokens: float
    exposed_work_tokens: float
    floor_work_tokens: float
    duration_ms: float


@dataclass(slots=True)
class _Given:
    stamp: tuple[int, int]
    work_tokens: float
    ends_ms: float


@dataclass(slots=True)
class _Account:
    """What is counted against one holder boot in one class."""

    in_flight: float = 0.0
    wanted: float = 0.0
    given: list[_Given] = field(default_factory=list)

    def exposed(self) -> float:
        return max([self.in_flight, *(given.work_tokens for given in self.given)])

    def last_end_ms(self) -> float:
        return max((given.ends_ms for given in self.given), default=0.0)


@dataclass(slots=True)
class _Known:
    """One boot of a holder."""

    boot: str
    boot_started_at_ms: int
    request_seq: int
    heard_ms: float
    stopping: bool = False
    floor: float = 0.0
    replaced_at_ms: float | None = None
    accounts: dict[str, _Account] = field(default_factory=dict)


class Grantor:
    """Grants the leases of one region and pool; there is one writer of them, the region's owner.

    ``epoch`` is the owner's claim offset; versions rise with each grant. All times are the grantor's own
    clock in milliseconds.
    """

    def __init__(self, region: str, pool: str, terms: LeaseTerms, *, epoch: int = 0) -> None:
        self.region = region
        self.pool = pool
        self.terms = terms
        self.epoch = epoch
        self._version = 0
        self._boots: dict[tuple[str, str], _Known] = {}

    def restore(self, rows: Iterable[LeaseLike], now_ms: float) -> None:
        """Take over: count every lease that the topic held before our claim, as if granted right now."""
        for row in rows:
            if (row.region, row.pool) != (self.region, self.pool):
                continue
            known = self._boots.setdefault(
                (row.holder, row.holder_boot), _Known(row.holder_boot, -1, row.request_seq, now_ms)
            )
            known.floor = max(known.floor, row.floor_work_tokens)
            account = known.accounts.setdefault(row.service_class, _Account())
            # The row's exposure covers the leases before it, one of which the holder may still hold.
            exposed = max(row.work_tokens, row.exposed_work_tokens)
            ends_ms = now_ms + row.duration_ms + self.terms.skew_ms
            account.given.append(_Given((row.epoch, row.version), exposed, ends_ms))

    def report(self, report: ReportLike, now_ms: float) -> None:
        """Take a router's heartbeat. An older boot's, or one already seen, changes nothing."""
        key = (report.router, report.boot)
        known = self._boots.get(key)
        if known is None:
            known = self._boots[key] = _Known(report.boot, report.boot_started_at_ms, -1, now_ms)
        known.boot_started_at_ms = report.boot_started_at_ms
        if known.replaced_at_ms is not None or report.version <= known.request_seq:
            return
        for (holder, boot), other in self._boots.items():
            if holder != report.router or boot == report.boot:
                continue
            if other.boot_started_at_ms > report.boot_started_at_ms:
                known.replaced_at_ms = now_ms  # a zombie: a later boot is already known
            elif other.replaced_at_ms is None:
                other.replaced_at_ms = now_ms
        known.request_seq = report.version
        known.heard_ms = now_ms
        known.stopping = report.mode == "stopping"
        told: set[str] = set()
        for demand in report.demands:
            if (demand.region, demand.pool) != (self.region, self.pool):
                continue
            told.add(demand.service_class)
            account = known.accounts.setdefault(demand.service_class, _Account())
            account.in_flight = demand.in_flight_work_tokens
            account.wanted = max(demand.wanted_work_tokens, demand.in_flight_work_tokens)
            if demand.held_epoch is not None and demand.held_version is not None:
                held = (demand.held_epoch, demand.held_version)
                account.given = [given for given in account.given if given.stamp >= held]
        for service_class, account in known.accounts.items():
            if service_class not in told:
                account.wanted = 0.0

    def forget(self, holder: str) -> None:
        """An operator says that this holder is gone for good: nothing counts against it any more."""
        for key in [key for key in self._boots if key[0] == holder]:
            del self._boots[key]

    def exposed_work_tokens(self, now_ms: float) -> float:
        """Live leases, unfinished work and floors: what the cap must cover."""
        self._expire(now_ms)
        return self._floors() + sum(
            account.exposed() for known in self._boots.values() for account in known.accounts.values()
        )

    def grant(self, cap_work_tokens: float, class_shares: Mapping[str, float], now_ms: float) -> list[Grant]:
        """Divide the cap by class, then by demand, and grant.

        Shares are normalised; what a class or holder does not want is lent to those that want more, above a
        minimum chunk for each holder. Nothing is granted beyond the cap; a holder whose wish does not fit is
        given what fits, which may be less than it has in flight (then it drains).
        """
        self._expire(now_ms)
        holders = [
            (name, known)
            for (name, _), known in self._boots.items()
            if known.replaced_at_ms is None
            and known.boot_started_at_ms >= 0
            and not known.stopping
            and now_ms - known.heard_ms <= self.terms.duration_ms
        ]
        total_share = sum(class_shares.values())
        if not holders or total_share <= 0:
            return []
        for _, known in holders:
            more = self.terms.floor_work_tokens - known.floor
            if 0 < more <= cap_work_tokens - self.exposed_work_tokens(now_ms):
                known.floor += more
        pot = max(0.0, cap_work_tokens - self.terms.floor_work_tokens * len(self._boots))
        chunk = pot / (8.0 * len(holders))
        wants = {
            (service_class, name): max(account.wanted, chunk * share / total_share)
            for service_class, share in class_shares.items()
            for name, known in holders
            for account in [known.accounts.setdefault(service_class, _Account())]
        }
        targets = _divide(pot, {c: s / total_share for c, s in class_shares.items()}, wants)
        counted = self.exposed_work_tokens(now_ms)
        free = max(0.0, cap_work_tokens - counted)
        raises = {
            (service_class, name): max(
                0.0, targets[service_class, name] - known.accounts[service_class].exposed()
            )
            for service_class in class_shares
            for name, known in holders
        }
        scale = min(1.0, free / total) if (total := sum(raises.values())) > 0 else 1.0
        grants = []
        for service_class in class_shares:
            for name, known in holders:
                account = known.accounts[service_class]
                target, raised = targets[service_class, name], raises[service_class, name]
                work = account.exposed() + raised * scale if raised > 0 else target
                grants.append(self._give(service_class, name, known, account, work, now_ms))
        return grants

    def _give(
        self, service_class: str, name: str, known: _Known, account: _Account, work: float, now_ms: float
    ) -> Grant:
        self._version += 1
        ends_ms = now_ms + self.terms.duration_ms + self.terms.skew_ms
        # A holder that reports seldom must not make the list long.
        account.given = _merge_covered(account.given, _Given((self.epoch, self._version), work, ends_ms))
        return Grant(
            service_class=service_class,
            holder=name,
            holder_boot=known.boot,
            request_seq=known.request_seq,
            version=self._version,
            work_tokens=work,
            exposed_work_tokens=account.exposed(),
            floor_work_tokens=known.floor,
            duration_ms=self.terms.duration_ms,
        )

    def _floors(self) -> float:
        return sum(known.floor for known in self._boots.values())

    def _expire(self, now_ms: float) -> None:
        terms = self.terms
        gone = []
        for key, known in self._boots.items():
            if known.replaced_at_ms is not None:
                if now_ms > known.replaced_at_ms + terms.skew_ms:
                    gone.append(key)
                continue
            for account in known.accounts.values():
                # Expired leases bound what was admitted under them until a report says what is left.
                silent = now_ms - known.heard_ms > terms.duration_ms + terms.skew_ms
                if silent and now_ms > account.last_end_ms() + terms.max_intent_ms:
                    account.given, account.in_flight, account.wanted = [], 0.0, 0.0
            idle = all(not a.given and not a.in_flight for a in known.accounts.values())
            if idle and now_ms - known.heard_ms > terms.forget_ms + terms.skew_ms:
                gone.append(key)
        for key in gone:
            del self._boots[key]


def _merge_covered(given: list[_Given], new: _Given) -> list[_Given]:
    """Add a lease; of those between the oldest and the newest keep only the largest (with its latest end)."""
    if len(given) < 4:
        return [*given, new]
    first, *middle = given
    largest = max(middle, key=lambda g: g.work_tokens)
    newest = max(middle, key=lambda g: g.stamp)
    kept = _Given(newest.stamp, largest.work_tokens, max(g.ends_ms for g in middle))
    return [first, kept, new]


def _divide(
    pot: float, shares: Mapping[str, float], wants: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """Max-min fair division: first each class within its share, then the rest lent to whoever wants more."""
    targets: dict[tuple[str, str], float] = {}
    for service_class, share in shares.items():
        mine = {key: want for key, want in wants.items() if key[0] == service_class}
        targets |= water_fill(pot * share, mine)
    left = pot - sum(targets.values())
    unmet = {key: want - targets[key] for key, want in wants.items() if want > targets[key]}
    for key, more in water_fill(left, unmet).items():
        targets[key] += more
    return targets


def water_fill(pot: float, wants: Mapping[K, float]) -> dict[K, float]:
    """Give every want the same level, none more than it wants, and use up the pot if the wants do."""
    given = dict.fromkeys(wants, 0.0)
    left = pot
    for index, (key, want) in enumerate(sorted(wants.items(), key=lambda item: item[1])):
        given[key] = min(want, left / (len(wants) - index))
        left -= given[key]
    return given


# -------------------------------------------------------------------------------------------- the holder


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
