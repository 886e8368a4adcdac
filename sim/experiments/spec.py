"""The experiment file as models. What is wrong in it is found before anything runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(min_length=1, max_length=60)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
EngineName = Literal["S1", "S2", "S3", "S4"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReplicaGroup(_Model):
    """So many engines of one kind in one region. ``version`` is the model's; each is a pool of its own."""

    region: Name = "a"
    engine: EngineName
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    version: Name = "1"
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 8192


class LinkSpec(_Model):
    """Between two regions, both ways alike. ``bandwidth_mbps`` is of one stream; None: no limit."""

    between: tuple[Name, Name]
    rtt_ms: NotNegative
    bandwidth_mbps: Positive | None = None
    egress_price_per_gb: NotNegative = 0.0


class SignalSpec(_Model):
    """See :class:`sim.des.signals.SignalOptions`."""

    sample_every_ms: Positive = 250.0
    delay_ms: NotNegative = 50.0
    loss: Share = 0.0
    relative_error: NotNegative = 0.0
    missing: Share = 0.0
    skew_ms: NotNegative = 0.0
    log_delay_ms: NotNegative = 50.0
    registry_delay_ms: NotNegative = 1_000.0


class Fleet(_Model):
    """Regions, links, engines, routers and signals."""

    regions: list[Name] = Field(default=["a"], min_length=1)
    replicas: list[ReplicaGroup] = Field(min_length=1)
    links: list[LinkSpec] = []
    residency: dict[Name, list[Name]] = {}
    routers_per_region: Annotated[int, Field(ge=1, le=256)] = 1
    signals: SignalSpec = SignalSpec()
    frontend: bool = True


class ClassSpec(_Model):
    """A service class; ``lengths`` is a file, or nothing: the built-in table of the class's name."""

    name: Name
    share: NotNegative = 1.0
    ttft_slo_ms: Positive
    tpot_slo_ms: Positive
    client_timeout_ms: Positive
    deadline_ms: Positive
    lengths: str | None = None


class Workload(_Model):
    """A ``trace`` (a file), the ``generator`` (sessions, prefixes) or a ``mixture`` (lengths by class)."""

    kind: Literal["trace", "generator", "mixture"]
    trace: str | None = None
    classes: list[ClassSpec] = Field(min_length=1)
    duration_s: Positive | None = None
    jitter_ms: NotNegative | None = None
    modulation: Share = 0.5
    mean_turns: Annotated[float, Field(ge=1)] = 3.0
    entry_shares: dict[Name, NotNegative] = {"a": 1.0}
    residency_shares: dict[Name, Share] = {}
    skip_broken: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Workload:
        if (self.kind == "trace") != (self.trace is not None):
            raise ValueError("a workload of kind 'trace' needs a file in 'trace', and only that kind has one")
        if self.kind != "trace" and self.duration_s is None:
            raise ValueError(f"a workload of kind {self.kind!r} needs 'duration_s'")
        return self


class Clients(_Model):
    """See :class:`sim.des.clients.ClientOptions`; ``users`` make the loop a closed one."""

    max_retries: Annotated[int, Field(ge=0, le=20)] = 2
    backoff_ms: Positive = 500.0
    backoff_cap_ms: Positive = 8_000.0
    cancel_share: Share = 0.0
    loop: Literal["open", "partly_open", "closed"] = "open"
    think_ms: NotNegative = 5_000.0


class Step(_Model):
    """A change of rate or mix at a time of the run; mixtures only."""

    at_s: NotNegative
    factor: Positive = 1.0
    shares: dict[Name, NotNegative] | None = None


class Operation(_Model):
    """What is done to engines (by number) at a time of the run.

    A ``roll_out`` replaces the model's version by ``version``, one engine after the other: it drains, loads
    for ``load_s`` and then serves the new version only.
    """

    at_s: NotNegative
    do: Literal["fail", "drain", "start", "roll_out"]
    replicas: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    load_s: NotNegative = 150.0
    version: Name | None = None

    @model_validator(mode="after")
    def _version(self) -> Operation:
        if self.do == "roll_out" and self.version is None:
            raise ValueError("a 'roll_out' needs a 'version'")
        return self


NEWEST = "newest"
"""In shares of versions: the bare model name, for which a router takes the newest with ready endpoints."""


class VersionShares(_Model):
    """From ``at_s`` on, which versions intents ask for, by shares.

    ``newest`` stands for the bare model name. Intents of the residency classes in ``not_for`` ask as before.
    Without any of these all ask for the bare name. A conversation has one draw for the whole run, so it
    changes its version only where the shares move past it.
    """

    at_s: NotNegative = 0.0
    shares: dict[Name, NotNegative] = Field(min_length=1)
    not_for: list[Name] = []

    @model_validator(mode="after")
    def _positive(self) -> VersionShares:
        if not sum(self.shares.values()) > 0:
            raise ValueError("shares of versions need a sum above 0")
        return self


class Load(_Model):
    """A condition: a rate (``rate_rps``, or ``speed`` of a trace), what changes in it, what is different.

    With ``users`` (of a closed loop) a rate is only the order in which sessions were recorded.
    """

    name: Name
    rate_rps: Positive | None = None
    speed: Positive | None = None
    users: Annotated[int, Field(ge=1)] | None = None
    steps: list[Step] = []
    operations: list[Operation] = []
    versions: list[VersionShares] = []
    clients: Clients | None = None
    routers_per_region: Annotated[int, Field(ge=1, le=256)] | None = None
    signals: SignalSpec | None = None
    entry_shares: dict[Name, NotNegative] | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> Load:
        if (self.rate_rps is None) == (self.speed is None):
            raise ValueError("a load needs either 'rate_rps' or 'speed'")
        return self


class Choice(_Model):
    """A policy with its knobs."""

    policy: Name
    knobs: dict[Name, float] = {}


class Arm(_Model):
    """One combination of policies.

    A ``fixed`` arm is not tuned: it is a setting among which the static oracle chooses in hindsight.
    """

    name: Name
    fixed: bool = False
    balancer: Choice
    admission: Choice = Choice(policy="all")
    region: Choice = Choice(policy="nearest")

    def choice(self, kind: str) -> Choice:
        """The policy of a kind: balancer, admission or region."""
        return {"balancer": self.balancer, "admission": self.admission, "region": self.region}[kind]


class Knee(_Model):
    """The rate at which ``share`` of the intents are good under the arm ``arm``; found by ``sim knee``."""

    rate_rps: Positive
    arm: Name
    share: Share = 0.9


class Experiment(_Model):
    """Everything that a run depends on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)]
    title: str
    about: str = ""
    base: Name
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    warmup_share: Annotated[float, Field(ge=0, lt=0.9)] = 0.1
    fleet: Fleet
    workload: Workload
    clients: Clients = Clients()
    knee: Knee | None = None
    oracles: list[Literal["request", "pooled", "goodput", "static"]] = []
    loads: list[Load] = Field(min_length=1)
    arms: list[Arm] = Field(min_length=1)
