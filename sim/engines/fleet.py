"""Many emulated instances in one process, and the list of them for whoever has to find them."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from sim.engines.errors import EmulatorError
from sim.engines.instance import EmulatedInstance
from sim.engines.spec import InstanceSpec, check_unique


class EmulatedFleet:
    """Starts all instances or none, and stops what it started::

    async with EmulatedFleet(specs) as fleet:
        fleet.instances[0].url
    """

    def __init__(self, specs: Sequence[InstanceSpec], *, admin: bool = False, drain_s: float = 0.0) -> None:
        """``admin`` adds the ``/emulator/`` routes; ``drain_s`` is what stopping leaves open requests."""
        check_unique(list(specs))
        self.instances = [EmulatedInstance(spec, admin=admin) for spec in specs]
        self._drain_s = drain_s

    def by_id(self, instance: str) -> EmulatedInstance:
        """The instance with this id; ``KeyError`` if there is none."""
        for candidate in self.instances:
            if candidate.spec.instance == instance:
                return candidate
        raise KeyError(instance)

    async def start(self) -> None:
        """Start every instance; if one can't, stop the others and raise its :class:`EmulatorError`."""
        try:
            for instance in self.instances:
                await instance.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop every instance, side by side."""
        await asyncio.gather(*(instance.stop(drain_s=self._drain_s) for instance in self.instances))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def write_endpoints(path: Path, instances: Iterable[EmulatedInstance]) -> None:
    """Write the running instances as the static discovery list of the telemetry source (YAML)."""
    write_endpoint_list(
        path,
        [
            {
                "instance": instance.spec.instance,
                "engine": "vllm",
                "url": instance.url,
                "region": instance.spec.region,
                "pools": [instance.spec.pool],
            }
            for instance in instances
        ],
    )


def write_endpoint_list(path: Path, endpoints: Sequence[Mapping[str, object]]) -> None:
    """Write a static discovery list (YAML).

    The file appears whole or not at all, so a reader that polls never sees half of it. Raises EmulatorError.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(yaml.safe_dump({"endpoints": list(endpoints)}, sort_keys=False), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise EmulatorError(f"Can't write the endpoint list {path}: {error}.") from error


def remove_endpoints(path: Path) -> None:
    """Take the list of :func:`write_endpoints` away again; it is no error if somebody else did."""
    path.unlink(missing_ok=True)
