"""fleet.endpoints: the registry of engines that source agents write."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import EpochMs, Name, PoolId, Row

Role = Literal["prefill", "decode", "both"]


class EndpointRow(Row):
    """One engine that a source agent watches. ``pools[0]`` is its home pool and partition."""

    schema_name: ClassVar[str] = "endpoint"

    instance: Name
    boot: Name = Field(description="Minted by the agent when the engine's process start changes.")
    boot_started_at_ms: EpochMs
    engine: Name
    url: Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s]+$")]
    region: Name
    pools: Annotated[list[PoolId], Field(min_length=1, max_length=64)]
    roles: list[Role] = ["both"]
    tokenizer: Name | None = None
    served_model: Name | None = Field(default=None, description="The name the engine itself answers to.")
    reachable: bool = True
    draining: bool = False
    source: Name | None = Field(
        default=None,
        description="The agent that watches it, and removes the row when it no longer does.",
    )

    host: Name | None = Field(
        default=None, description="The host that it runs on, by the name that fleet.gpus has for it."
    )
    gpus: Annotated[list[Name], Field(max_length=64)] = Field(
        default=[],
        description="UUIDs of its own GPUs or MIG devices; empty: which of its host's is not said.",
    )

    def key(self) -> str:
        return self.instance
