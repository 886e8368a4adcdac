"""Reading an experiment file: YAML with line numbers, so that an error names the line it is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sim.experiments.lifecycle import lifecycle_problems
from sim.experiments.spec import Choice, Experiment
from sim.experiments.workload_checks import workload_problems
from sim.policies.admissions import ADMISSIONS
from sim.policies.balancers import BALANCERS
from sim.policies.knobs import Entry, named
from sim.policies.regions import REGIONS
from sim.workloads.mixture import load_lengths
from sim.workloads.traces import TraceError, load_trace

BUILT_IN = Path(__file__).parent / "files"
KINDS: Mapping[str, Mapping[str, Entry[Any]]] = {
    "balancer": BALANCERS,
    "admission": ADMISSIONS,
    "region": REGIONS,
}
Loc = tuple[int | str, ...]


class ExperimentError(ValueError):
    """An experiment that can't be run; one line for each thing that is wrong, with file and line."""


def built_in() -> dict[str, Path]:
    """The experiment files that come with the package, by name."""
    return {path.stem: path for path in sorted(BUILT_IN.glob("*.yaml"))}


def find(name_or_path: str) -> Path:
    """A built-in experiment by name, or a path. ExperimentError where there is neither."""
    path = Path(name_or_path)
    if path.exists():
        return path
    if name_or_path in built_in():
        return built_in()[name_or_path]
    raise ExperimentError(
        f"There is no experiment file {name_or_path}; built in are {', '.join(built_in())}."
    )


def load_experiment(path: Path, traces: Path | None = None) -> Experiment:
    """Read and check a file: its shape, its policies and their knobs, its regions, its traces.

    ``traces``: where files that are named without a folder are looked for. ExperimentError names lines.
    """
    text = path.read_text(encoding="utf-8")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        raise ExperimentError(f"{path.name}:{line}: not YAML: {getattr(error, 'problem', error)}.") from None
    lines = dict(_lines(node)) if node is not None else {}
    try:
        experiment = Experiment.model_validate(data)
    except ValidationError as error:
        problems = [(tuple(e["loc"]), e["msg"].removeprefix("Value error, ")) for e in error.errors()]
        raise ExperimentError(_report(path, lines, problems)) from None
    problems = list(_problems(experiment, path.parent, traces))
    if problems:
        raise ExperimentError(_report(path, lines, problems))
    return experiment


def resolve(name: str, folder: Path, traces: Path | None) -> Path:
    """Where a trace is: as it stands, beside the experiment file, or in the folder of traces."""
    path = Path(name)
    places = [path, folder / name, *([traces / name] if traces is not None else [])]
    return next((place for place in places if place.is_file()), places[-1])


def _report(path: Path, lines: Mapping[Loc, int], problems: list[tuple[Loc, str]]) -> str:
    said = []
    for loc, message in problems:
        known = loc
        while known and known not in lines:
            known = known[:-1]
        where = ".".join(str(part) for part in loc) or "the file"
        said.append((lines.get(known, 1), f"{where}: {message.rstrip('.')}."))
    return "\n".join(f"{path.name}:{line}: {message}" for line, message in sorted(said))


def _lines(node: yaml.Node, loc: Loc = ()) -> Iterator[tuple[Loc, int]]:
    yield loc, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*loc, key.value)
            yield from _lines(value, inner)
            yield inner, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _lines(value, (*loc, number))


def _problems(experiment: Experiment, folder: Path, traces: Path | None) -> Iterator[tuple[Loc, str]]:
    yield from _arm_problems(experiment)
    yield from _oracle_problems(experiment)
    yield from _fleet_problems(experiment)
    yield from _load_problems(experiment)
    yield from workload_problems(experiment)
    yield from lifecycle_problems(experiment)
    yield from _trace_problems(experiment, folder, traces)


def _oracle_problems(experiment: Experiment) -> Iterator[tuple[Loc, str]]:
    engines = sorted({group.engine for group in experiment.fleet.replicas})
    if set(experiment.oracles) - {"static"} and len(engines) > 1:
        yield ("oracles",), f"these need a fleet of one kind of engine, not of {', '.join(engines)}"
    if "static" in experiment.oracles and not any(
        arm.admission.policy == "static_cap" for arm in experiment.arms
    ):
        yield ("oracles",), "'static' needs arms with the admission policy 'static_cap'"


def _arm_problems(experiment: Experiment) -> Iterator[tuple[Loc, str]]:
    names = Counter(arm.name for arm in experiment.arms)
    for number, arm in enumerate(experiment.arms):
        if names[arm.name] > 1:
            yield ("arms", number, "name"), f"the name {arm.name!r} is used more than once"
        for kind in KINDS:
            yield from check_choice(kind, arm.choice(kind), ("arms", number, kind))
    if experiment.base not in names:
        yield ("base",), f"there is no arm {experiment.base!r}; there are {', '.join(names)}"
    if experiment.knee is not None and experiment.knee.arm not in names:
        yield ("knee", "arm"), f"there is no arm {experiment.knee.arm!r}; there are {', '.join(names)}"


def check_choice(kind: str, choice: Choice, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """What is wrong with a policy or its knobs."""
    try:
        entry = named(KINDS[kind], kind, choice.policy)
    except ValueError as error:
        yield (*loc, "policy"), str(error)
        return
    for knob, value in choice.knobs.items():
        try:
            entry.params({knob: value})
        except ValueError as error:
            yield (*loc, "knobs", knob), str(error)


def _fleet_problems(experiment: Experiment) -> Iterator[tuple[Loc, str]]:
    fleet = experiment.fleet
    regions = set(fleet.regions)
    named_at: list[tuple[Loc, str]] = [
        (("fleet", "replicas", i, "region"), group.region) for i, group in enumerate(fleet.replicas)
    ]
    named_at += [
        (("fleet", "links", i, "between"), end) for i, link in enumerate(fleet.links) for end in link.between
    ]
    named_at += [(("fleet", "residency", r), name) for r, names in fleet.residency.items() for name in names]
    named_at += [(("workload", "entry_shares", name), name) for name in experiment.workload.entry_shares]
    for i, load in enumerate(experiment.loads):
        named_at += [(("loads", i, "entry_shares", name), name) for name in load.entry_shares or {}]
    for loc, name in named_at:
        if name not in regions:
            yield loc, f"there is no region {name!r}; there are {', '.join(fleet.regions)}"
    for name in experiment.workload.residency_shares:
        if name not in fleet.residency:
            yield ("workload", "residency_shares", name), f"no residency class {name!r} in fleet.residency"
    linked = {frozenset(link.between) for link in fleet.links}
    for one in fleet.regions:
        for other in fleet.regions:
            if one < other and frozenset((one, other)) not in linked:
                yield ("fleet", "links"), f"there is no link between {one!r} and {other!r}"


def _load_problems(experiment: Experiment) -> Iterator[tuple[Loc, str]]:
    names = Counter(load.name for load in experiment.loads)
    classes = {item.name for item in experiment.workload.classes}
    kind = experiment.workload.kind
    for i, load in enumerate(experiment.loads):
        if names[load.name] > 1:
            yield ("loads", i, "name"), f"the name {load.name!r} is used more than once"
        if load.speed is not None and kind != "trace":
            yield ("loads", i, "speed"), f"only a trace has a speed; a {kind} needs 'rate_rps'"
        if load.steps and kind != "mixture":
            yield ("loads", i, "steps"), f"only a mixture has steps, not a {kind}"
        for j, step in enumerate(load.steps):
            unknown = sorted(set(step.shares or {}) - classes)
            if unknown:
                yield ("loads", i, "steps", j, "shares"), f"there is no class {unknown[0]!r}"
        loop = (load.clients or experiment.clients).loop
        if (load.users is not None) != (loop == "closed"):
            yield ("loads", i), "'users' and a closed loop go together"


def _trace_problems(experiment: Experiment, folder: Path, traces: Path | None) -> Iterator[tuple[Loc, str]]:
    workload = experiment.workload
    if workload.trace is not None:
        try:
            load_trace(resolve(workload.trace, folder, traces), skip_broken=workload.skip_broken)
        except TraceError as error:
            yield ("workload", "trace"), str(error)
    for i, item in enumerate(workload.classes):
        if item.lengths is not None:
            try:
                load_lengths(resolve(item.lengths, folder, traces), skip_broken=workload.skip_broken)
            except TraceError as error:
                yield ("workload", "classes", i, "lengths"), str(error)
