"""Whether and how an agent looks at the GPUs of its host."""

from __future__ import annotations

import re
import socket
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from schemas.base import Name


class GpusConfig(BaseModel):
    """``gpus: true`` is this with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Annotated[Name, Field(max_length=100)] | None = Field(
        default=None, description="The host's name in events and alerts; in a container the node's."
    )
    interval_ms: Annotated[float, Field(ge=100, le=600_000)] = 1_000.0
    timeout_s: Annotated[float, Field(ge=0.1, le=60)] = Field(
        default=2.0, description="A GPU whose driver takes longer to answer is silent."
    )

    @property
    def host_name(self) -> str:
        """The host's name as an identifier."""
        return self.host or re.sub(r"[^A-Za-z0-9._\-]+", "-", socket.gethostname())[:100] or "host"
