"""Where an engine's KV events are to be had, as the operator describes it."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

_TCP = re.compile(r"^(tcp://(?:\*|\{host\}|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.\-]+)):(\d{1,5})$")
_IPC = re.compile(r"^(ipc|inproc)://\S+$")


class KvEventsConfig(BaseModel):
    """The event stream of one engine.

    ``endpoint`` and ``replay`` are those of rank 0; the engine moves each further rank's to the next ports
    (``tcp``), or appends ``_dp1``, ``_dp2``, ... (``ipc``), and so do we. ``{host}`` stands for the host of
    the engine's URL: an engine that DNS or Kubernetes finds has its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Annotated[str, Field(max_length=300)]
    replay: Annotated[str, Field(max_length=300)] | None = Field(
        default=None, description="The replay socket; without it a gap means that the view starts over."
    )
    topic: Annotated[str, Field(max_length=200)] = ""
    ranks: Annotated[int, Field(ge=1, le=256)] = 1
    bind: bool | None = Field(
        default=None, description="Listen here, for an engine that connects; default: where it has a *."
    )

    @field_validator("endpoint", "replay")
    @classmethod
    def _address(cls, endpoint: str | None) -> str | None:
        if endpoint is None or _IPC.match(endpoint):
            return endpoint
        if (match := _TCP.match(endpoint)) is None or not 1 <= int(match[2]) <= 65_535:
            raise ValueError("expected tcp://HOST:PORT or ipc://PATH")
        return endpoint

    @field_validator("replay")
    @classmethod
    def _connectable(cls, replay: str | None) -> str | None:
        if replay is not None and "*" in replay:
            raise ValueError("the replay socket is the engine's own: name its host, not *")
        return replay

    @property
    def binds(self) -> bool:
        """Do we listen? The engine binds where its own endpoint has a ``*``; we do the mirror image."""
        return "*" in self.endpoint if self.bind is None else self.bind

    def at(self, url: str) -> KvEventsConfig:
        """This with the host of an engine's URL in place of ``{host}``."""
        host = urlsplit(url).hostname or ""
        host = f"[{host}]" if ":" in host else host
        replay = None if self.replay is None else self.replay.replace("{host}", host)
        return self.model_copy(update={"endpoint": self.endpoint.replace("{host}", host), "replay": replay})

    def endpoint_of(self, rank: int) -> str:
        """The event socket of a rank."""
        return _moved(self.endpoint, rank)

    def replay_of(self, rank: int) -> str | None:
        """The replay socket of a rank, None where there is none."""
        return None if self.replay is None else _moved(self.replay, rank)


def _moved(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if match := _TCP.match(endpoint):
        return f"{match[1]}:{int(match[2]) + rank}"
    return f"{endpoint}_dp{rank}"
