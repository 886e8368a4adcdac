"""Ways to tell that a started process is ready for work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from infra.blocking import run_blocking
from infra.ports import port_answers


class Readiness(Protocol):
    """A probe that is asked again and again until it says yes."""

    @property
    def timeout_s(self) -> float:
        """Seconds after which a process that is still not ready counts as failed."""

    def ready(self) -> bool:
        """Say whether the process is ready now; False also where it does not answer at all."""

    def describe(self) -> str:
        """Say in a few words what was waited for, for an error message."""


@dataclass(frozen=True)
class HttpReady:
    """Ready when a GET of `url` answers 200. Proxies of the environment are not used."""

    url: str
    timeout_s: float = 30.0

    def ready(self) -> bool:
        return run_blocking(self._answers)

    def describe(self) -> str:
        return f"a 200 from {self.url}"

    async def _answers(self) -> bool:
        import aiohttp  # here, so that `tokenfleet --help` stays quick

        try:
            timeout = aiohttp.ClientTimeout(total=2.0)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self.url) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


@dataclass(frozen=True)
class PortReady:
    """Ready when a TCP connection to 127.0.0.1:`port` is accepted."""

    port: int
    timeout_s: float = 30.0

    def ready(self) -> bool:
        return port_answers(self.port)

    def describe(self) -> str:
        return f"an open port {self.port}"


@dataclass(frozen=True)
class CallReady:
    """Ready when `check()` returns true; `what` names it in messages."""

    check: Callable[[], bool]
    what: str
    timeout_s: float = 30.0

    def ready(self) -> bool:
        return self.check()

    def describe(self) -> str:
        return self.what
