"""What follows something that lists engines: it is asked again and again, and keeps its last good list."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sources.discovery.config import EndpointConfig

MISSED_UNTIL_GONE = 2
"""An engine that one good answer lacks may be a blip of the resolver or the API; two in a row mean it."""


class Lookup(Exception):  # noqa: N818 - reads as what happened
    """The list could not be had; the message is a sentence."""


class Provider(ABC):
    """One list of engines. A failed look-up never removes an engine: the last good list stays."""

    every_s: float

    def __init__(self, name: str, every_s: float) -> None:
        self.name = name
        self.every_s = every_s
        self.error: str | None = None
        self.answered = False
        self._known: dict[str, EndpointConfig] = {}
        self._missed: dict[str, int] = {}

    @abstractmethod
    async def look_up(self) -> list[EndpointConfig]:
        """The list as it is now; raises Lookup."""

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds."""

    @property
    def endpoints(self) -> list[EndpointConfig]:
        """The engines as last known."""
        return list(self._known.values())

    async def poll(self) -> bool:
        """Look again; True where ``endpoints`` changed."""
        try:
            found = {endpoint.instance: endpoint for endpoint in await self.look_up()}
        except Lookup as failed:
            self.error = str(failed)
            return False
        self.error = None
        before, first, self.answered = dict(self._known), not self.answered, True
        for instance in list(self._known):
            missed = 0 if instance in found else self._missed.get(instance, 0) + 1
            self._missed[instance] = missed
            if missed >= MISSED_UNTIL_GONE:
                del self._known[instance], self._missed[instance]
        self._known |= found
        return first or self._known != before
