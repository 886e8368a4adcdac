"""The life of a request: from its client through a router, a link and an engine, and back.

Residency, version and readiness are hard filters before any policy is asked, on retries as well. The SLO
clock starts at the first attempt. A refusal, a timeout or a loss may be followed by another attempt; how
patient clients are doesn't depend on the policy, so arms differ only in what was decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import nan
from random import Random

from minds.fleetmind.eligibility import NO_READY_ENDPOINT, RESIDENCY_FORBIDS
from sim.des.attempts import Attempt, Intent
from sim.des.clients import ClientOptions
from sim.des.events import EventQueue
from sim.des.metrics import Recorder
from sim.des.network import Network
from sim.des.policy import (
    ADMIT,
    HOLD,
    OutcomeView,
    Refusal,
    RequestView,
)
from sim.des.pools import ReadyPools
from sim.des.replicas import Replica, ReplicaState
from sim.des.routers import Desk, Router
from sim.des.sequence import FINISHED
from sim.des.sequence import Sequence as EngineSequence
from sim.des.views import FleetView
from sim.engine.step_model import frontend_ms
from sim.workloads.plan import IntentSpec

NOTHING_ALLOWED_RETRY_MS = 1_000.0
"""When a client may come again that found no endpoint it may use."""


class RequestFlow:
    """Moves attempts along; it is the listener of all instances."""

    def __init__(
        self, events: EventQueue, network: Network, recorder: Recorder, clients: ClientOptions, seed: int
    ) -> None:
        self.refusals: Counter[str] = Counter()
        self.on_closed: Callable[[IntentSpec, float], None] = lambda spec, ended_ms: None
        self._events = events
        self._network = network
        self._recorder = recorder
        self._clients = clients
        self._seed = seed
        self._links = network.matrix()
        self._region_of = {name: number for number, name in enumerate(network.regions)}
        self._nearest = [sorted(range(len(row)), key=lambda r: (row[r].rtt_ms, r)) for row in self._links]
        self._allowed: dict[tuple[int, str | None], list[int]] = {}
        self._routers: Sequence[Router] = ()
        self._replicas: Sequence[Replica] = ()
        self._pools: ReadyPools | None = None
        self._inside: list[int] = []  # attempts in a replica, or on the way to it
        self._log_delay_ms = 0.0
        self.frontend = True  # whether engines' front ends take their time

    def connect(
        self,
        routers: Sequence[Router],
        replicas: Sequence[Replica],
        pools: ReadyPools,
        log_delay_ms: float,
    ) -> None:
        """Give it the fleet. ``pools`` are kept up to date by the registry; routers are in order of region,
        equally many in each."""
        self._routers = routers
        self._replicas = replicas
        self._pools = pools
        self._inside = [0] * len(replicas)
        self._log_delay_ms = log_delay_ms

    # The client's side ------------------------------------------------------------------------------------

    def offer(self, now_ms: float, spec: IntentSpec) -> None:
        """A new intent. ValueError where its entry region doesn't exist."""
        entry = self._region_of.get(spec.entry_region)
        if entry is None:
            raise ValueError(f"Intent {spec.intent_id} comes from {spec.entry_region!r}, which is no region.")
        row = self._recorder.offered(
            now_ms,
            spec.service_class,
            spec.tenant,
            entry,
            spec.input_tokens,
            spec.ttft_slo_ms,
            spec.tpot_slo_ms,
        )
        intent = Intent(spec, row, entry, now_ms)
        if self._clients.cancel_share > 0.0:
            leaves_ms = self._clients.cancel_after_ms(Random(f"cancel-{self._seed}-{spec.intent_id}"))
            if leaves_ms is not None:
                self._events.at(now_ms + leaves_ms, self._leave, intent)
        self._try(now_ms, intent)

    def _try(self, now_ms: float, intent: Intent) -> None:
        if intent.closed:
            return
        spec = intent.spec
        intent.attempts += 1
        full = spec.input_tokens // 512
        view = RequestView(
            intent.row,
            intent.attempts,
            spec.service_class,
            spec.tenant,
            intent.entry,
            spec.residency,
            spec.input_tokens,
            spec.prefix_blocks if len(spec.prefix_blocks) <= full else spec.prefix_blocks[:full],
            now_ms,
            intent.start_ms,
            intent.deadline_ms,
            spec.ttft_slo_ms,
            spec.tpot_slo_ms,
            self._version_for(spec),
        )
        per_region = len(self._routers) // len(self._links)
        # A mix of the row's bits: retries go elsewhere, and neighbours don't march in step.
        mixed = (intent.row * 0x9E3779B1 + intent.attempts * 0x85EBCA6B + self._seed) & 0xFFFFFFFF
        router = self._routers[intent.entry * per_region + (mixed >> 7) % per_region]
        patience_ms = min(now_ms + spec.client_timeout_ms, intent.deadline_ms)
        desk = router.desk(view.version)
        attempt = Attempt(intent, view, router.number, desk, now_ms, patience_ms)
        intent.live = attempt
        self._events.at(patience_ms, self._patience_over, attempt)
        regions = self._eligible(view, desk)
        if not regions:
            self._refuse_unservable(now_ms, attempt)
            return
        router.signals.refresh(now_ms)
        verdict = desk.admission.admit(now_ms, view, FleetView(now_ms, desk.layout))
        if verdict == HOLD:
            attempt.held = True
            desk.held[intent.row] = attempt
        elif verdict == ADMIT:
            self._dispatch(now_ms, router, attempt, regions)
        else:
            self._refuse(now_ms, attempt, verdict)

    def _patience_over(self, now_ms: float, attempt: Attempt) -> None:
        if not attempt.live:
            return
        if attempt.first_ms is None or attempt.first_ms > now_ms or now_ms >= attempt.intent.deadline_ms:
            self._end(now_ms, attempt, "timeout")
        else:
            self._events.at(attempt.intent.deadline_ms, self._patience_over, attempt)

    def _leave(self, now_ms: float, intent: Intent) -> None:
        if intent.closed:
            return
        if intent.live is not None:
            self._end(now_ms, intent.live, "cancelled")
        else:
            self._close(now_ms, intent, "cancelled")

    def _answered(self, now_ms: float, attempt: Attempt) -> None:
        if attempt.live:
            self._end(now_ms, attempt, "ok")

    # The router's side ------------------------------------------------------------------------------------

    def pump(self, now_ms: float, router: Router, desk: Desk) -> None:
        """Let a pool's admission say who of the held ones enters or is given up now."""
        if not desk.held:
            return
        router.signals.refresh(now_ms)
        for number, verdict in desk.admission.pump(now_ms, FleetView(now_ms, desk.layout)):
            attempt = desk.held.pop(number, None)
            if attempt is None:
                raise RuntimeError(f"The admission released request {number}, which it doesn't hold.")
            attempt.held = False
            if isinstance(verdict, Refusal):
                self._refuse(now_ms, attempt, verdict)
            else:
                self._dispatch(now_ms, router, attempt, self._eligible(attempt.view, desk))

    def _dispatch(self, now_ms: float, router: Router, attempt: Attempt, regions: list[int]) -> None:
        attempt.admitted = True
        view, desk = attempt.view, attempt.desk
        if not regions:
            self._refuse_unservable(now_ms, attempt)
            return
        chosen = regions[0]
        if len(self._links) > 1:
            fleet = FleetView(now_ms, desk.layout)
            answer = desk.region.choose_region(now_ms, view, fleet, regions, router.rng)
            if isinstance(answer, Refusal):
                self._refuse(now_ms, attempt, answer)
                return
            if answer not in regions:
                raise RuntimeError(f"A policy chose region {answer} where only {regions} were allowed.")
            chosen = answer
        candidates = desk.layout.candidates(now_ms, chosen)
        position = desk.balancer.choose(now_ms, view, candidates, router.rng)
        if isinstance(position, Refusal):
            self._refuse(now_ms, attempt, position)
            return
        if not 0 <= position < len(candidates):
            raise RuntimeError(f"A policy chose candidate {position} of {len(candidates)}.")
        self._send(now_ms, router, attempt, int(candidates.instances[position]))

    def _version_for(self, spec: IntentSpec) -> str:
        if self._pools is None:
            raise RuntimeError("A flow can't take requests before it is connected to a fleet.")
        return self._pools.resolve(spec.model_version)

    def _eligible(self, view: RequestView, desk: Desk) -> list[int]:
        """Regions that may serve it and have a ready endpoint of exactly its version, nearest first."""
        return [region for region in self._may_serve(view) if desk.layout.ready(region)]

    def _refuse_unservable(self, now_ms: float, attempt: Attempt) -> None:
        rule = NO_READY_ENDPOINT if self._may_serve(attempt.view) else RESIDENCY_FORBIDS
        self._refuse(now_ms, attempt, Refusal(rule, NOTHING_ALLOWED_RETRY_MS))

    def _may_serve(self, view: RequestView) -> list[int]:
        """Regions that the residency class allows, nearest first."""
        key = (view.entry_region, view.residency)
        regions = self._allowed.get(key)
        if regions is None:
            allowed = self._network.allowed(view.residency)
            regions = self._allowed[key] = [r for r in self._nearest[view.entry_region] if r in allowed]
        return regions

    def _send(self, now_ms: float, router: Router, attempt: Attempt, number: int) -> None:
        view = attempt.view
        replica = self._replicas[number]
        tokens = view.prompt_tokens
        dispatch = router.signals.dispatched(now_ms, number, tokens, view.blocks)
        if len(self._routers) > 1:
            for other in self._routers:
                if other is not router:
                    other.signals.told(now_ms + self._log_delay_ms, dispatch)
        attempt.dispatch = dispatch
        attempt.replica = number
        attempt.boot = replica.boot
        self._inside[number] += 1
        link = self._links[view.entry_region][replica.region]
        if link.egress_price_per_gb:
            self._recorder.price(view.number, link.price(tokens))
        front_ms = frontend_ms(tokens) if self.frontend else 0.0
        self._events.at(now_ms + link.one_way_ms(tokens) + front_ms, self._submit, attempt)

    def _refuse(self, now_ms: float, attempt: Attempt, refusal: Refusal) -> None:
        self.refusals[refusal.rule] += 1
        self._end(now_ms, attempt, "shed", refusal.retry_after_ms)

    # The engine's side ------------------------------------------------------------------------------------

    def _submit(self, now_ms: float, attempt: Attempt) -> None:
        """The front end hands the prompt to the scheduler."""
        replica = self._replicas[attempt.replica]
        spec = attempt.intent.spec
        if not attempt.live:  # the client left while it was on the way
            self._left(now_ms, attempt)
        elif (
            not replica.serving
            or replica.boot != attempt.boot
            or replica.version != attempt.view.version  # the registry was behind: no such model there
            or not replica.instance.fits(spec.input_tokens, spec.output_tokens)
        ):
            self._left(now_ms, attempt)
            self._end(now_ms, attempt, "failed")
        else:
            sequence = EngineSequence(spec.input_tokens, spec.output_tokens, attempt.view.blocks, attempt)
            attempt.sequence = sequence
            replica.instance.submit(sequence, now_ms)

    def first_token(self, sequence: EngineSequence, now_ms: float) -> None:
        """An engine sampled an attempt's first token."""
        attempt: Attempt = sequence.owner
        first_ms = attempt.first_ms = now_ms + self._way_back_ms(attempt)
        if first_ms > now_ms:
            self._events.at(first_ms, self._prefilled, attempt)
        else:
            self._prefilled(now_ms, attempt)

    def _prefilled(self, now_ms: float, attempt: Attempt) -> None:
        """The router sees the first token, or the end, of an attempt; the others learn of it by the log."""
        dispatch = attempt.dispatch
        if dispatch is None or attempt.prefilled:
            return
        attempt.prefilled = True
        router = self._routers[attempt.router]
        router.signals.prefilled(dispatch)
        if len(self._routers) > 1:
            for other in self._routers:
                if other is not router:
                    other.signals.told(now_ms + self._log_delay_ms, dispatch, prefilled=True)

    def finished(self, sequence: EngineSequence, now_ms: float) -> None:
        """An engine sampled an attempt's last token."""
        attempt: Attempt = sequence.owner
        self._left(now_ms, attempt)
        end_ms = now_ms + self._way_back_ms(attempt)
        if end_ms > now_ms:
            self._events.at(end_ms, self._answered, attempt)
        else:
            self._answered(now_ms, attempt)

    def lost(self, sequence: EngineSequence, now_ms: float) -> None:
        """An engine died with this attempt in it."""
        attempt: Attempt = sequence.owner
        self._left(now_ms, attempt)
        if attempt.live:
            self._end(now_ms, attempt, "failed")
        else:
            self._waste(attempt, sequence.generated_tokens)  # its client had gone, the engine didn't know yet

    def check_empty(self, number: int, now_ms: float) -> None:
        """Tell a replica when nothing is in it or on its way."""
        if self._inside[number] == 0:
            self._replicas[number].empty(now_ms)

    def _left(self, now_ms: float, attempt: Attempt) -> None:
        number = attempt.replica
        self._inside[number] -= 1
        if self._inside[number] == 0 and self._replicas[number].state is ReplicaState.DRAINING:
            self._replicas[number].empty(now_ms)

    def _way_back_ms(self, attempt: Attempt) -> float:
        return self._links[self._replicas[attempt.replica].region][attempt.intent.entry].one_way_ms(1.0)

    def _remove(self, now_ms: float, attempt: Attempt) -> None:
        """The engine learns that the client is gone; it frees everything at once."""
        sequence = attempt.sequence
        if sequence is None or self._replicas[attempt.replica].boot != attempt.boot:
            return
        if self._replicas[attempt.replica].instance.cancel(sequence, now_ms):
            self._left(now_ms, attempt)
            self._waste(attempt, sequence.generated_tokens)
        elif sequence.state == FINISHED:  # it was done before it learned that
            self._waste(attempt, sequence.generated_tokens)

    # Ends -------------------------------------------------------------------------------------------------

    def _end(self, now_ms: float, attempt: Attempt, end: str, retry_after_ms: float | None = None) -> None:
        """An attempt is over for its client and its router."""
        attempt.live = False
        intent = attempt.intent
        intent.live = None
        router, desk = self._routers[attempt.router], attempt.desk
        sequence = attempt.sequence
        if attempt.held:
            attempt.held = False
            del desk.held[intent.row]
            desk.admission.gone(now_ms, attempt.view)
        else:
            if sequence is not None and end in ("timeout", "cancelled"):
                self._stop(now_ms, attempt, sequence)
            self._account(now_ms, router, attempt, end)
        if end == "ok":
            self._record(now_ms, attempt)
            self._close(now_ms, intent, "ok")
        elif end == "cancelled":
            self._close(now_ms, intent, "cancelled")
        else:
            self._retry(now_ms, intent, end, retry_after_ms)
        self.pump(now_ms, router, desk)

    def _stop(self, now_ms: float, attempt: Attempt, sequence: EngineSequence) -> None:
        back_ms = self._way_back_ms(attempt)
        if sequence.state == FINISHED:  # the whole answer came too late
            self._waste(attempt, sequence.generated_tokens)
        elif back_ms > 0.0:
            self._events.at(now_ms + back_ms, self._remove, attempt)
        else:
            self._remove(now_ms, attempt)

    def _account(self, now_ms: float, router: Router, attempt: Attempt, end: str) -> None:
        """Tell the router's signals and policies."""
        sequence = attempt.sequence
        if attempt.dispatch is not None:
            router.signals.ended(now_ms, attempt.dispatch)
            self._prefilled(now_ms, attempt)
        if end == "failed" and sequence is not None:
            self._waste(attempt, sequence.generated_tokens)
        seen = attempt.first_ms if attempt.first_ms is not None and attempt.first_ms <= now_ms else None
        tokens = 0 if sequence is None or seen is None else self._generated(attempt, sequence)
        outcome = OutcomeView(
            end,
            attempt.replica if attempt.dispatch is not None else None,
            attempt.start_ms,
            now_ms if attempt.dispatch is None else attempt.dispatch.sent_ms,
            now_ms,
            None if seen is None else seen - attempt.start_ms,
            None if seen is None or tokens < 2 else (now_ms - seen) / (tokens - 1),
            tokens,
            0 if sequence is None else sequence.cached_tokens,
        )
        if attempt.dispatch is not None:
            attempt.desk.balancer.ended(now_ms, attempt.view, outcome)
        if attempt.admitted:
            attempt.desk.admission.ended(now_ms, attempt.view, outcome)

    def _record(self, now_ms: float, attempt: Attempt) -> None:
        sequence, first_ms = attempt.sequence, attempt.first_ms
        if sequence is None or first_ms is None:
            raise RuntimeError("An answer is whole, but its first token was never seen.")
        spec = attempt.intent.spec
        region = self._replicas[attempt.replica].region
        link = self._links[region][attempt.intent.entry]
        if link.egress_price_per_gb:
            self._recorder.price(attempt.intent.row, link.price(spec.output_tokens))
        self._recorder.answered(
            attempt.intent.row,
            ttft_ms=first_ms - attempt.intent.start_ms,
            tpot_ms=(now_ms - first_ms) / (spec.output_tokens - 1) if spec.output_tokens > 1 else nan,
            output_tokens=spec.output_tokens,
            cached_tokens=sequence.cached_tokens,
            preemptions=sequence.preemptions,
            region=region,
            instance=attempt.replica,
        )
        sequence.owner = None

    def _generated(self, attempt: Attempt, sequence: EngineSequence) -> int:
        return self._replicas[attempt.replica].instance.generated(sequence)

    def _waste(self, attempt: Attempt, tokens: int) -> None:
        if tokens:
            self._recorder.wasted(attempt.intent.row, tokens)

    def _retry(self, now_ms: float, intent: Intent, end: str, retry_after_ms: float | None) -> None:
        rng = Random(f"retry-{self._seed}-{intent.spec.intent_id}-{intent.attempts}")
        wait_ms = self._clients.retry_wait_ms(end, intent.attempts, retry_after_ms, rng)
        if wait_ms is None or now_ms + wait_ms >= intent.deadline_ms:
            self._close(now_ms, intent, end)
        else:
            self._events.at(now_ms + wait_ms, self._try, intent)

    def _close(self, now_ms: float, intent: Intent, cause: str) -> None:
        intent.closed = True
        self._recorder.closed(intent.row, cause, now_ms, intent.attempts)
        self.on_closed(intent.spec, now_ms)
