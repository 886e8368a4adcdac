"""Pools: which engines may be chosen for a version of the model, as the registry has told the routers.

A pool is a model's version (``model@version``); there is one model here. An engine is in the pool of exactly
the version that it serves, and in none while it isn't ready. Whatever a policy gets to see comes from here,
so no policy can send a request to another version.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minds.fleetmind.eligibility import pool_of
from sim.des.signals import Ints

MODEL = "model"


class ReadyPools:
    """Ready engines by version and region, kept up to date by the registry."""

    def __init__(self, regions: int, versions: Iterable[str]) -> None:
        """``versions``: those that any engine has, ready or not; at least one."""
        self._regions = regions
        self._members: dict[str, list[Ints]] = {}
        self._listed: dict[int, tuple[int, str]] = {}  # region and version of each listed engine
        for version in versions:
            self.of(version)
        self._newest = self._resolve()

    @property
    def versions(self) -> list[str]:
        """All versions that were ever named, in order of their names."""
        return sorted(self._members)

    def of(self, version: str) -> list[Ints]:
        """The numbers of a pool's engines for each region: always the same list, with its present content.

        A version that nobody serves has an empty pool.
        """
        if version not in self._members:
            self._members[version] = [np.array([], int) for _ in range(self._regions)]
        return self._members[version]

    def add(self, number: int, region: int, version: str) -> None:
        """An engine serves this version from now on, and no other."""
        self.remove(number)
        self._listed[number] = (region, version)
        self._update(region, version)

    def remove(self, number: int) -> None:
        """An engine takes no new work. Nothing happens where it isn't listed."""
        if number in self._listed:
            self._update(*self._listed.pop(number))

    def resolve(self, version: str | None) -> str:
        """The version that a request gets: the one it names, or by production's rule for a bare model name
        (:func:`minds.fleetmind.eligibility.pool_of`: the newest with ready endpoints)."""
        return self._newest if version is None else version

    def _update(self, region: int, version: str) -> None:
        here = (region, version)
        self.of(version)[region] = np.array(sorted(n for n, at in self._listed.items() if at == here), int)
        self._newest = self._resolve()

    def _resolve(self) -> str:
        ready = {
            f"{MODEL}@{version}": sum(len(part) for part in parts) for version, parts in self._members.items()
        }
        pool = pool_of(MODEL, ready)
        if pool is None:
            raise ValueError("A fleet needs at least one version of its model.")
        return pool.rpartition("@")[2]
