"""fleet.gpus: how the accelerators of a host are."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, DurationMs, EpochMs, Event, Name
from schemas.readings import UNKNOWN, Reading


class GpuSample(Event):
    """One look at one GPU, or at one MIG device of a GPU (then ``parent`` names the GPU).

    Totals count since the driver was loaded; ``xid_total`` since the agent began to listen. What a GPU does
    not tell is unknown; of one that is lost or silent all is.
    """

    schema_name: ClassVar[str] = "gpu"
    key_fields: ClassVar[tuple[str, ...]] = ("host", "gpu")

    host: Name
    gpu: Name = Field(description="Its UUID, the same after a restart and in another slot.")
    parent: Name | None = None
    index: Annotated[int, Field(ge=0, le=4096)] = Field(description="The driver's number; it may change.")
    product: Annotated[str, Field(max_length=100)] = ""
    at_ms: EpochMs
    state: Literal["ok", "lost", "silent"] = Field(
        description="lost: it fell off the bus or needs a reset; silent: the driver gave no answer in time."
    )
    utilization_ratio: Reading = UNKNOWN
    memory_busy_ratio: Reading = Field(default=UNKNOWN, description="Time in which memory was accessed.")
    memory_used_bytes: Reading = UNKNOWN
    memory_total_bytes: Reading = UNKNOWN
    power_w: Reading = UNKNOWN
    power_limit_w: Reading = UNKNOWN
    temperature_c: Reading = UNKNOWN
    sm_clock_mhz: Reading = UNKNOWN
    memory_clock_mhz: Reading = UNKNOWN
    ecc_corrected_total: Reading = UNKNOWN
    ecc_uncorrected_total: Reading = UNKNOWN
    nvlinks_active: Reading = UNKNOWN
    nvlink_errors_total: Reading = Field(default=UNKNOWN, description="Replays, recoveries and flit CRCs.")
    xid_total: Reading = UNKNOWN
    xid_last: Count | None = None
    xid_last_at_ms: EpochMs | None = None
    mig_enabled: bool | None = None
    throttle_reasons: Annotated[list[Name], Field(max_length=32)] | None = Field(
        default=None, description="What holds the clocks down now; None where unknown."
    )
    valid_for_ms: DurationMs | None = Field(
        default=None,
        description="How old the sample may be and still be fresh: a few intervals of the agent.",
    )
