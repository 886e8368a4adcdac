"""The grantor: the one writer of the leases of a region and pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from minds.leases.terms import LeaseLike, LeaseTerms, ReportLike

K = TypeVar("K")


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
