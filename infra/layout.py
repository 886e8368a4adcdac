"""What the local stack consists of: regions, engines, routers, and where each of them listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from infra.errors import StackError
from infra.llamacpp.fleet import RealEngine
from infra.ports import check_port_free, free_port

EngineKind = Literal["emulated", "llama.cpp"]
"""``emulated``: one process with all instances, like vLLM; ``llama.cpp``: a real server process each."""
ENGINE_KINDS: tuple[EngineKind, ...] = get_args(EngineKind)

MODEL, VERSION = "llama-70b", "v1"
"""What the emulated engines serve."""
ENTRY_WITHOUT_GPUS = "edge"
REGIONS: Mapping[str, int] = {"eu-west": 3, "us-east": 3, "ap-south": 2}
"""Emulated instances a region; ``edge`` only takes requests in."""
REAL_REGIONS: Mapping[str, int] = {"eu-west": 2, "us-east": 2, "ap-south": 1}
"""llama.cpp servers a region: fewer, since each computes for real."""
ROUTERS: Mapping[str, str] = {"router-0": ENTRY_WITHOUT_GPUS, "router-1": "eu-west"}
"""Entry region of each router."""
DEMO_POLICY = Path(__file__).with_name("policies") / "demo.yaml"

FIXED_PORTS: Mapping[str, int] = {
    "kafka": 9092,
    "router-0": 8080,
    "router-1": 8081,
    "sink": 8123,
    "streams-0": 8090,
    "source-0": 8091,
    "engines": 8101,
}
"""Where ``tokenfleet up`` listens by default; engines take a row of ports."""


@dataclass(frozen=True)
class Layout:
    """One local stack. ``kafka`` and ``clickhouse`` name servers of the user's, else both are embedded."""

    data_dir: Path
    ports: Mapping[str, int]
    kafka: str | None = None
    clickhouse: str | None = None
    policy: Path = DEMO_POLICY
    regions: Mapping[str, int] = field(default_factory=lambda: REGIONS)
    routers: Mapping[str, str] = field(default_factory=lambda: ROUTERS)
    engine: EngineKind = "emulated"
    model_size: str = "tiny"
    """Of llama.cpp's random model, see infra.llamacpp.tiny_model; the fields below are the emulator's."""
    params: str = "S2"
    max_num_seqs: int = 16
    speed: float = 1.0
    seed: int = 0

    @property
    def model(self) -> str:
        """The model's name in requests."""
        return self.real_engines()[0].model if self.engine == "llama.cpp" else MODEL

    def engine_count(self) -> int:
        """Instances in all regions."""
        return sum(self.regions.values())

    def real_engines(self) -> list[RealEngine]:
        """The instances as llama.cpp servers."""
        return [
            RealEngine(name, region, self.ports[name], self.model_size)
            for region, name in _instances(self.regions)
        ]

    def instances(self) -> list[dict[str, object]]:
        """The emulated instances, as ``tokenfleet engines --config`` reads them."""
        return [
            {
                "instance": name,
                "region": region,
                "port": self.ports[name],
                "model": MODEL,
                "version": VERSION,
                "params": self.params,
                "max_num_seqs": self.max_num_seqs,
                "speed": self.speed,
                "seed": self.seed + number,
            }
            for number, (region, name) in enumerate(_instances(self.regions))
        ]

    def url(self, name: str) -> str:
        """Where a service of this stack answers HTTP."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def entry_urls(self) -> dict[str, list[str]]:
        """For each entry region the routers that take its requests, the nearest first."""
        return {
            entry: [self.url(name)] + [self.url(other) for other in self.routers if other != name]
            for name, entry in self.routers.items()
        }


def engine_kind(name: str) -> EngineKind:
    """The kind of that name; raises StackError with one sentence where there is none."""
    for kind in ENGINE_KINDS:
        if kind == name:
            return kind
    raise StackError(f"There is no engine {name!r} for a local stack; choose {' or '.join(ENGINE_KINDS)}.")


def regions_of(engine: EngineKind) -> Mapping[str, int]:
    """How many instances of an engine each region gets by default."""
    return REAL_REGIONS if engine == "llama.cpp" else REGIONS


def _instances(regions: Mapping[str, int]) -> list[tuple[str, str]]:
    """Region and instance id."""
    return [(region, f"{region}-{index}") for region, count in regions.items() for index in range(count)]


def _names(regions: Mapping[str, int], routers: Mapping[str, str]) -> list[str]:
    instances = [name for _, name in _instances(regions)]
    return ["kafka", *routers, "sink", "streams-0", "source-0", *instances]


def free_ports(regions: Mapping[str, int] = REGIONS, routers: Mapping[str, str] = ROUTERS) -> dict[str, int]:
    """A free port for each part, so that a demo never collides with anything."""
    return {name: free_port() for name in _names(regions, routers)}


def fixed_ports(
    *, embedded_kafka: bool, regions: Mapping[str, int] = REGIONS, routers: Mapping[str, str] = ROUTERS
) -> dict[str, int]:
    """The documented ports; raises StackError with one sentence where one is taken."""
    ports = {name: port for name, port in FIXED_PORTS.items() if name != "engines"}
    ports |= {name: FIXED_PORTS["engines"] + index for index, (_, name) in enumerate(_instances(regions))}
    for name, port in ports.items():
        if name != "kafka" or embedded_kafka:
            check_port_free(port, name)
    return ports
