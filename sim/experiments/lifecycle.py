"""What can't be in an experiment's operations on engines and its versions of the model."""

from __future__ import annotations

from collections.abc import Iterator

from sim.experiments.spec import NEWEST, Experiment, Load, Operation, VersionShares

Loc = tuple[int | str, ...]
Problem = tuple[Loc, str]


def lifecycle_problems(experiment: Experiment) -> Iterator[Problem]:
    """Engines that aren't there, operations in an impossible order, versions that nobody ever serves."""
    engines = [group for group in experiment.fleet.replicas for _ in range(group.count)]
    first = [engine.version for engine in engines]
    for i, group in enumerate(experiment.fleet.replicas):
        if group.version == NEWEST:
            yield ("fleet", "replicas", i, "version"), _reserved()
    for i, load in enumerate(experiment.loads):
        here: Loc = ("loads", i)
        beyond = list(_beyond(load, len(engines), here))
        yield from beyond
        if beyond:
            continue
        yield from _order_problems(load, first, here)
        served: dict[str, set[str]] = {}
        for engine in engines:
            served.setdefault(engine.version, set()).add(engine.region)
        for operation in load.operations:
            if operation.do == "roll_out" and operation.version is not None:
                regions = {engines[number].region for number in operation.replicas}
                served.setdefault(operation.version, set()).update(regions)
        yield from _version_problems(experiment, load, served, here)


def _reserved() -> str:
    return f"{NEWEST!r} stands for the bare model name; give the version another name"


def _beyond(load: Load, count: int, here: Loc) -> Iterator[Problem]:
    for j, operation in enumerate(load.operations):
        where = (*here, "operations", j, "replicas")
        beyond = [number for number in operation.replicas if number >= count]
        if beyond:
            yield where, f"there is no replica {beyond[0]}; they are numbered 0 to {count - 1}"
        if len(set(operation.replicas)) < len(operation.replicas):
            yield where, "a replica is named more than once"


def _order_problems(load: Load, first: list[str], here: Loc) -> Iterator[Problem]:
    """What the order of the operations alone tells: how long draining takes is only known in the run."""
    version = list(first)
    up: list[bool | None] = [True] * len(first)  # None: on its way through a roll-out
    ordered: list[tuple[int, Operation]] = sorted(enumerate(load.operations), key=lambda item: item[1].at_s)
    for j, operation in ordered:
        where = (*here, "operations", j)
        for number in operation.replicas:
            if operation.do == "start":
                if up[number]:
                    yield where, f"replica {number} is up then; only one that failed or was drained can start"
                up[number] = True
            elif operation.do == "roll_out":
                if version[number] == operation.version:
                    yield (*where, "version"), f"replica {number} has version {version[number]!r} already"
                version[number] = operation.version or version[number]
                up[number] = None
            else:
                if up[number] is False:
                    yield where, f"replica {number} was taken out before and not started since"
                up[number] = False
        if operation.do != "roll_out" and operation.version is not None:
            yield (*where, "version"), f"a {operation.do!r} has no version; only a 'roll_out' has"
        if operation.version == NEWEST:
            yield (*where, "version"), _reserved()


def _version_problems(
    experiment: Experiment, load: Load, served: dict[str, set[str]], here: Loc
) -> Iterator[Problem]:
    times = [step.at_s for step in load.versions]
    if len(set(times)) < len(times):
        yield (*here, "versions"), "two of them begin at the same time"
    if (load.clients or experiment.clients).loop != "open" and any(time > 0 for time in times):
        yield (*here, "versions"), "only intents of an open loop have a time of their own; use at_s: 0"
    for k, step in enumerate(load.versions):
        where = (*here, "versions", k)
        for version, share in step.shares.items():
            if version != NEWEST and version not in served:
                message = f"no engine has or gets version {version!r}; there are {', '.join(sorted(served))}"
                yield (*where, "shares", version), message
            elif version != NEWEST and share > 0:
                yield from _residency_problems(experiment, step, version, served[version], where)
        for name in step.not_for:
            if name not in experiment.fleet.residency:
                yield (*where, "not_for"), f"no residency class {name!r} in fleet.residency"


def _residency_problems(
    experiment: Experiment, step: VersionShares, version: str, regions: set[str], where: Loc
) -> Iterator[Problem]:
    for residency, share in experiment.workload.residency_shares.items():
        allowed = set(experiment.fleet.residency.get(residency, ()))
        if share > 0 and residency not in step.not_for and allowed and not allowed & regions:
            yield (
                (*where, "shares", version),
                f"intents of residency class {residency!r} may not leave {', '.join(sorted(allowed))}, where "
                f"version {version!r} never is; name the class in 'not_for'",
            )
