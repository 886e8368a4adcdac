"""One decision: filter, order the regions, admit, choose the instance. The minds decide; this holds state."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Set
from dataclasses import dataclass

from minds.fleetmind.eligibility import (
    NO_READY_ENDPOINT,
    RESIDENCY_FORBIDS,
    TENANT_NOT_ALLOWED,
    Site,
    excluded_by,
    narrow_to_pins,
    nothing_allowed,
    tenant_refusal,
)
from minds.fleetmind.regions import order_regions, region_loads
from minds.leases import Ticket
from minds.tokenpilot.least_outstanding import Dispatch, Standing, choose, estimates, standing_of
from router.asks import Ask
from router.gate import AdmissionGate
from router.journal import Where
from router.metrics import RouterMetrics
from router.refusals import Refusal
from router.tables import FleetTables, Member
from schemas.decisions import Candidate, DecisionInput, RowVersion
from schemas.topics import INSTANCES
from transport.clock import now_ms

CODE_VERSION = f"tokenfleet/{importlib.metadata.version('tokenfleet')}"
STILL_TRUE_MS = 2
"""A survey older than this is made again before the instance is chosen."""
Key = tuple[str, str]
"""(instance, boot)."""


@dataclass(slots=True)
class Survey:
    """What one decision saw: each endpoint of the pool with its exclusion, and the figures of the rest."""

    at_ms: int
    seed: int
    excluded: list[tuple[Member, str]]
    members: list[Member]
    standings: list[Standing]
    values: list[float]


@dataclass(slots=True)
class Placement:
    """An attempt's place: give it back with ``Placer.release``."""

    member: Member
    ticket: Ticket
    dispatch: Dispatch
    survey: Survey
    queue_ms: float
    dispatched_at_ms: int

    @property
    def where(self) -> Where:
        member = self.member
        return Where(member.region, member.instance, member.boot, self.ticket.lease_id)


class Placer:
    """Places attempts. ``silent`` says whether the tables have stopped coming."""

    def __init__(
        self,
        tables: FleetTables,
        gate: AdmissionGate,
        metrics: RouterMetrics,
        *,
        entry_region: str,
        silent: Callable[[], bool],
    ) -> None:
        self._tables = tables
        self._gate = gate
        self._metrics = metrics
        self._entry_region = entry_region
        self._silent = silent

    async def place(self, ask: Ask, deadline_at_ms: int, tried: Set[Key], seed: int) -> Placement:
        """A place for one attempt, not among those tried. Raises Refusal with the rule."""
        started_ms = now_ms()
        self._check_tenant(ask)
        for _ in range(3):  # a region may lose its last endpoint while we wait for headroom there
            began = time.perf_counter()
            survey = self.survey(ask, tried, seed)
            if not survey.members:
                raise self._nothing(ask)
            loads = region_loads([member.region for member in survey.members], survey.values)
            regions = order_regions(loads, self._entry_region, seed)
            took_s = time.perf_counter() - began
            ticket = await self._gate.admit(ask, regions, deadline_at_ms)
            began = time.perf_counter()
            if now_ms() - survey.at_ms > STILL_TRUE_MS:
                survey = self.survey(ask, tried, seed)
            inside = [i for i, member in enumerate(survey.members) if member.region == ticket.region]
            if not inside:
                self._gate.release(ticket)
                continue
            chosen = choose([survey.values[i] for i in inside], seed, [survey.standings[i] for i in inside])
            member = survey.members[inside[chosen]]
            at_ms = now_ms()
            dispatch = member.load.dispatched(at_ms)
            self._metrics.decision_seconds.observe(took_s + time.perf_counter() - began)
            return Placement(member, ticket, dispatch, survey, float(max(0, at_ms - started_ms)), at_ms)
        raise self._nothing(ask)

    def release(self, placement: Placement, *, ok: bool) -> None:
        """The attempt ended. A second call changes nothing."""
        at_ms = now_ms()
        placement.dispatch.load.finished(placement.dispatch, at_ms)
        service_ms = float(at_ms - placement.dispatched_at_ms) if ok else None
        self._gate.release(placement.ticket, service_ms=service_ms)

    def survey(self, ask: Ask, tried: Set[Key], seed: int) -> Survey:
        """The pool as this request may use it now."""
        at_ms, tables = now_ms(), self._tables
        policy, silent = tables.policy, self._silent()
        allowed = policy.allowed_regions(ask.residency)
        if ask.forced_residency_broken:
            allowed = frozenset()
        excluded: list[tuple[Member, str]] = []
        eligible: list[Member] = []
        for member in tables.members(ask.pool):
            site = Site(member.instance, member.region, tables.not_ready(member, at_ms, silent=silent))
            reason = excluded_by(site, policy, allowed)
            if reason is None:
                eligible.append(member)
            else:
                excluded.append((member, reason))
        if policy.instances.pinned or policy.regions.pinned:
            out = narrow_to_pins([Site(m.instance, m.region) for m in eligible], policy)
            excluded += [(m, out[m.instance]) for m in eligible if m.instance in out]
            eligible = [m for m in eligible if m.instance not in out]
        eligible = self._own_evidence(eligible, tried, at_ms, excluded)
        standings = [standing_of(m.load, tables.trust(m, at_ms)) for m in eligible]
        return Survey(at_ms, seed, excluded, eligible, standings, estimates(standings))

    def decision_input(self, survey: Survey, ask: Ask) -> DecisionInput:
        """All that the mind was given, for the log."""
        figures = self._tables.views[INSTANCES.name]
        rows = []
        candidates = []
        for member, standing, value in zip(survey.members, survey.standings, survey.values, strict=True):
            row = figures.row(member.instance)
            if row is not None:
                rows.append(
                    RowVersion(row=f"instances:{member.instance}"[:200], epoch=row.epoch, version=row.version)
                )
            candidates.append(_candidate(member, standing, value, row, survey.at_ms))
        candidates += [
            Candidate(instance=m.instance, region=m.region, excluded_by=why, own_in_flight=m.load.in_flight)
            for m, why in survey.excluded
        ]
        return DecisionInput(
            code_version=CODE_VERSION,
            seed=survey.seed,
            now_ms=survey.at_ms,
            rows=rows,
            candidates=candidates,
            lease_work_tokens=self._gate.headroom(ask, {m.region for m in survey.members}),
        )

    def _own_evidence(
        self, eligible: list[Member], tried: Set[Key], at_ms: int, excluded: list[tuple[Member, str]]
    ) -> list[Member]:
        """Leave out what this request has tried; and what just failed, for as long as there is any other."""
        fresh = [m for m in eligible if (m.instance, m.boot) not in tried]
        excluded += [(m, "own evidence: this request has tried it") for m in eligible if m not in fresh]
        suspects = self._tables.suspects
        paused = [m for m in fresh if suspects.paused(m.instance, m.boot, at_ms)]
        if not paused or len(paused) == len(fresh):
            return fresh
        excluded += [(m, "own evidence: it has just refused a connection") for m in paused]
        return [m for m in fresh if m not in paused]

    def _check_tenant(self, ask: Ask) -> None:
        reason = tenant_refusal(ask.tenant, ask.level.name, ask.pool, self._tables.policy)
        if reason is not None:
            raise Refusal(403, TENANT_NOT_ALLOWED, reason)

    def _nothing(self, ask: Ask) -> Refusal:
        allowed = self._tables.policy.allowed_regions(ask.residency)
        if ask.forced_residency_broken:
            return Refusal(
                403, RESIDENCY_FORBIDS, f"The tenant {ask.tenant.tenant} is bound to another residency class."
            )
        sites = [Site(m.instance, m.region) for m in self._tables.members(ask.pool)]
        rule = nothing_allowed(sites, allowed)
        if rule == RESIDENCY_FORBIDS:
            return Refusal(
                403, rule, f"No region that serves {ask.pool} is allowed for residency {ask.residency}."
            )
        return Refusal(
            503, NO_READY_ENDPOINT, f"No endpoint of {ask.pool} can take work now.", retry_after_s=1
        )


def _candidate(member: Member, standing: Standing, value: float, row: object, at_ms: int) -> Candidate:
    sampled_at_ms = member.load.sampled_at_ms
    gauges = getattr(row, "gauges", None)
    return Candidate(
        instance=member.instance,
        region=member.region,
        requests_running=gauges.requests_running.value if gauges and standing.reading is not None else None,
        requests_waiting=gauges.requests_waiting.value if gauges and standing.reading is not None else None,
        own_in_flight=standing.own_in_flight,
        own_since_sample=standing.own_sent_since,
        own_ended_since_sample=standing.own_ended_since,
        reading_age_ms=None if sampled_at_ms is None else float(max(0.0, at_ms - sampled_at_ms)),
        reading_trust=standing.trust,
        score=value,
    )
