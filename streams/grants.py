"""The grantor's shell: one region and pool's cap, quota row and lease rows, each second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minds.capacity.rows import Grants
from minds.leases import Grantor, LeaseTerms
from minds.slomax.caps import cap_terms, class_shares, static_cap
from schemas.grants import ClassQuota, LeaseRow, QuotaRow
from schemas.tables import InstanceState

MAX_INTENT_MS = 120_000.0


def lease_terms(policy: Any | None, pool: str) -> LeaseTerms:
    """The terms of a pool's leases from the policy; the longest deadline of any class bounds an intent."""
    cap = cap_terms(policy, pool)
    deadlines = [float(item.deadline_ms) for item in (policy.classes if policy is not None else ())]
    return LeaseTerms(
        duration_ms=cap.lease_duration_ms,
        skew_ms=cap.clock_skew_ms,
        floor_work_tokens=cap.floor_work_tokens,
        max_intent_ms=max([MAX_INTENT_MS, *deadlines]),
    )


@dataclass(slots=True)
class Granted:
    """What one tick publishes, and the leases whose rows may go."""

    quota: QuotaRow
    leases: list[LeaseRow]
    gone: list[tuple[str, int]]
    """Keys and the versions that their tombstones carry."""


@dataclass(slots=True)
class PoolGrants:
    """The grants of one region and pool under one claim of its partition.

    ``now_ms`` is the wall clock (rows), ``mono_ms`` the monotonic one (the grantor's). ``quota_epoch`` and
    ``lease_epoch`` are the claims on the two topics; rows rise with ``version``.
    """

    region: str
    pool: str
    partition: int
    quota_epoch: int
    lease_epoch: int
    figures: Grants | None = None
    _grantor: Grantor | None = None
    _last_cap: float | None = None
    _version: int = 0
    _written: dict[str, tuple[float, int]] = field(default_factory=dict)

    def restore(
        self, rows: Iterable[Any], last_cap: float | None, policy: Any | None, mono_ms: float
    ) -> None:
        """Take over the leases and the cap that were on the topics before the claims."""
        self._last_cap = last_cap
        mine = [row for row in rows if (row.region, row.pool) == (self.region, self.pool)]
        self._written = {f"{r.region}|{r.pool}|{r.service_class}|{r.holder}": (mono_ms, 0) for r in mine}
        self._grantor = Grantor(
            self.region, self.pool, lease_terms(policy, self.pool), epoch=self.lease_epoch
        )
        self._grantor.restore(mine, mono_ms)

    def tick(
        self,
        policy: Any | None,
        states: Sequence[InstanceState],
        routers: Iterable[Any],
        now_ms: int,
        mono_ms: float,
    ) -> Granted:
        """Hear the routers, and grant what the cap allows."""
        if self._grantor is None:
            raise RuntimeError(f"Leases of {self.region}|{self.pool} must be restored before any is granted.")
        terms = lease_terms(policy, self.pool)
        self._grantor.terms = terms
        for row in routers:
            self._grantor.report(row, mono_ms)
        per_endpoint = cap_terms(policy, self.pool).work_tokens_per_endpoint
        cap = self._last_cap = static_cap(per_endpoint, states, self._last_cap)
        shares = class_shares(policy)
        grants = self._grantor.grant(cap, shares, mono_ms) if cap is not None else []
        exposed = self._grantor.exposed_work_tokens(mono_ms)
        leased = sum(grant.work_tokens for grant in grants)
        self.figures = Grants(cap, leased, exposed)
        leases = []
        for grant in grants:
            lease = LeaseRow(
                as_of_ms=now_ms,
                valid_for_ms=grant.duration_ms,
                epoch=self.lease_epoch,
                version=grant.version,
                region=self.region,
                pool=self.pool,
                service_class=grant.service_class,
                holder=grant.holder,
                holder_boot=grant.holder_boot,
                request_seq=max(0, grant.request_seq),
                lease_id=f"{self.region}.{self.partition}.{self.lease_epoch}-{grant.version}"[-200:],
                work_tokens=grant.work_tokens,
                exposed_work_tokens=grant.exposed_work_tokens,
                floor_work_tokens=grant.floor_work_tokens,
                duration_ms=grant.duration_ms,
            )
            self._written[lease.key()] = (mono_ms, grant.version)
            leases.append(lease)
        return Granted(self._quota(cap, leased, exposed, shares, terms, now_ms), leases, self._gone(mono_ms))

    def _quota(
        self,
        cap: float | None,
        leased: float,
        exposed: float,
        shares: dict[str, float],
        terms: LeaseTerms,
        now_ms: int,
    ) -> QuotaRow:
        self._version += 1
        total = sum(shares.values()) or 1.0
        classes = [
            ClassQuota(service_class=name, share=share / total, work_tokens=cap * share / total)
            for name, share in shares.items()
            if cap is not None
        ]
        return QuotaRow(
            as_of_ms=now_ms,
            valid_for_ms=terms.duration_ms,
            epoch=self.quota_epoch,
            version=self._version,
            region=self.region,
            pool=self.pool,
            cap_work_tokens=cap,
            granted_work_tokens=leased,
            exposed_work_tokens=exposed,
            classes=classes,
            reason="no cap in the policy" if cap is None else "static cap of ready endpoints",
        )

    def _gone(self, mono_ms: float) -> list[tuple[str, int]]:
        """Lease rows that bind nobody any more: their holders have been silent past every bound."""
        if self._grantor is None:
            return []
        kept_ms = self._grantor.terms.forget_ms + self._grantor.terms.skew_ms
        gone = [(key, v) for key, (at_ms, v) in self._written.items() if mono_ms - at_ms > kept_ms]
        for key, _ in gone:
            del self._written[key]
        return gone
