"""Links between regions, as the operator describes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.base import Name

_Url = Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s@?#]+$")]


class LinkConfig(BaseModel):
    """One link: from the region where this agent runs to another one.

    What can't be measured by small probes is told here or unknown: bandwidth, and the price of a GiB that
    leaves ``from_region``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    from_region: Name
    to_region: Name
    urls: Annotated[list[_Url], Field(max_length=16)] = Field(
        default=[], description="Routers of the other region; without any, those that fleet.routers lists."
    )
    interval_ms: Annotated[float, Field(ge=100, le=60_000)] = 1_000.0
    timeout_s: Annotated[float, Field(ge=0.05, le=60)] = 2.0
    bandwidth_mbit_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    egress_usd_per_gib: Annotated[float, Field(ge=0, le=1000)] | None = None

    @model_validator(mode="after")
    def _two_regions(self) -> LinkConfig:
        if self.from_region == self.to_region:
            raise ValueError(f"a link leads to another region, not from {self.from_region} to itself")
        return self
