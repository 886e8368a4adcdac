"""``tokenfleet sim``: the yardstick: experiments on simulated fleets, their knee, tuning and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from sim.experiments.spec import Experiment

TRACES = Path("../shared/traces")
Traces = Annotated[
    Path, typer.Option("--traces", metavar="DIR", help="Where traces named without a folder are looked for.")
]
File = Annotated[str, typer.Argument(metavar="FILE", help="An experiment file, or a built-in one's name.")]
Processes = Annotated[
    int | None, typer.Option("--processes", min=1, help="How many cells run at a time (default: cores).")
]


def register(app: typer.Typer) -> None:
    """Add the command group to the CLI."""
    group = typer.Typer(help="Experiments on simulated fleets.", no_args_is_help=True)
    group.callback()(_group)
    group.command("run")(run)
    group.command("list")(list_files)
    group.command("policies")(policies)
    group.command("knee")(knee)
    group.command("tune")(tune)
    group.command("report")(report)
    group.command("fit")(fit)
    app.add_typer(group, name="sim")


def _group() -> None:
    """Experiments on simulated fleets."""


def run(
    file: File,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results go.")],
    traces: Traces = TRACES,
    processes: Processes = None,
    loads: Annotated[
        list[str] | None, typer.Option("--load", metavar="NAME", help="Only this load; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Only so many of the seeds.")] = None,
    keep: Annotated[
        str, typer.Option("--requests", help="Seeds whose requests are kept: first, all or none.")
    ] = "first",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to FILE.")
    ] = None,
) -> None:
    """Run an experiment; write Parquet files, run.json and report.html, and print its tables."""
    from rich.console import Console

    from sim.experiments.grid import run_grid, tasks_of
    from sim.experiments.store import write
    from sim.experiments.workload import Places, notes

    console = Console()
    if keep not in ("first", "all", "none"):
        _fail(f"--requests is first, all or none, not {keep}.")
    path, experiment = _experiment(file, traces)
    experiment = _part(experiment, loads, seeds)
    places = Places(path.parent, traces)
    tasks = tasks_of(experiment, keep)
    with _Progress(console, f"{experiment.name}: {len(tasks)} cells", len(tasks)) as done:
        results = run_grid(experiment, tasks, places, processes=processes, done=done)
        try:
            rows = write(out, experiment, notes(experiment, places), results)
        except OSError as error:
            _fail(f"Results can't be written to {out}: {error}.")
    _print(console, experiment, rows)
    _render(out)
    if json_file is not None:
        import json

        from sim.experiments.store import versions

        figures = {"experiment": experiment.name, "versions": versions(), "cells": rows}
        json_file.write_text(json.dumps(figures, indent=2, default=str) + "\n", encoding="utf-8")
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True)


def list_files() -> None:
    """The experiments that come with the package."""
    import yaml
    from rich.console import Console
    from rich.table import Table

    from sim.experiments.files_io import built_in
    from sim.experiments.spec import Experiment

    made = Table("name", "what", "cells", box=None)
    for name, path in built_in().items():
        experiment = Experiment.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        cells = len(experiment.arms) * len(experiment.loads) * len(experiment.seeds)
        made.add_row(name, experiment.title, str(cells))
    Console().print(made)


def policies() -> None:
    """All policies, and the knobs that an experiment may set."""
    from rich.console import Console
    from rich.table import Table

    from sim.experiments.files_io import KINDS

    console = Console()
    for kind, entries in KINDS.items():
        made = Table("policy", "what", "whose", "knobs", title=kind, title_justify="left", box=None)
        for entry in entries.values():
            knobs = ", ".join(f"{k.name}={k.default:g} [{k.low:g}..{k.high:g}]" for k in entry.knobs)
            made.add_row(entry.name, entry.title, entry.source, knobs.replace("[", r"\["))
        console.print(made)


def knee(
    file: File,
    arm: Annotated[str | None, typer.Option(help="Whose knee (default: the base arm's).")] = None,
    share: Annotated[float, typer.Option(min=0.01, max=0.999, help="Share of good intents at it.")] = 0.9,
    traces: Traces = TRACES,
) -> None:
    """The rate at which a share of the intents is good, by bisection."""
    from rich.console import Console

    from sim.experiments.knee import find_knee
    from sim.experiments.workload import Places

    path, experiment = _experiment(file, traces)
    names = {item.name: item for item in experiment.arms}
    chosen = names.get(arm or experiment.base)
    if chosen is None:
        _fail(f"There is no arm {arm!r}; there are {', '.join(names)}.")
    found = find_knee(experiment, chosen, share, Places(path.parent, traces))
    for probe in found.probes:
        Console().print(f"{probe.rate_rps:8.2f} requests/s: {probe.good_share:6.1%} good")
    Console().print(f"Knee of {chosen.name}: {found.rate_rps:.2f} requests/s.")


def tune(
    file: File,
    trials: Annotated[int, typer.Option(min=1, help="Trials of every policy, the defaults included.")] = 12,
    metric: Annotated[str, typer.Option(help="The figure to tune for.")] = "ttft_p95_ms",
    traces: Traces = TRACES,
    seed: Annotated[int, typer.Option(help="Seed of the search, and of its runs.")] = 1_000,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all trials to FILE.")
    ] = None,
    processes: Processes = None,
) -> None:
    """Tune every arm's knobs: the same seeded random search with the same number of trials for all."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from sim.experiments.tune import tune_all
    from sim.experiments.workload import Places

    console = Console()
    path, experiment = _experiment(file, traces)
    total = len(experiment.arms)
    with _Progress(console, f"{experiment.name}: {total} arms, {trials} trials each", total) as done:
        tuned = list(
            tune_all(
                experiment,
                Places(path.parent, traces),
                trials=trials,
                metric=metric,
                seed=seed,
                processes=processes,
                done=done,
            )
        )
    for item in tuned:
        console.print(f"{item.arm}: {item.best.knobs or 'no knobs'} ({metric} score {item.best.score:,.3g})")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(item) for item in tuned], indent=2) + "\n", encoding="utf-8")


def report(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that 'sim run' wrote.")],
) -> None:
    """Make report.html anew from the results in a folder."""
    from rich.console import Console

    try:
        _render(out)
    except FileNotFoundError as error:
        _fail(f"There are no results in {out}: {error.filename} is missing; make some with 'sim run'.")
    Console().print(f"Report: {out / 'report.html'}", soft_wrap=True)


def fit(
    profiles: Annotated[
        Path, typer.Option("--profiles", metavar="DIR", help="Folder of measured engine profiles.")
    ] = TRACES / "profiles",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to FILE.")
    ] = None,
) -> None:
    """How far the engine model is from measured engines, held-out points apart from those fitted."""
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from sim.fit.profiles import ProfileError
    from sim.fit.validate import validate

    try:
        rows = validate(profiles)
    except (ProfileError, OSError) as error:
        _fail(str(error))
    made = Table("set", "quantity", "points", "held out", box=None)
    for head in (
        "given: fitted",
        "given: held out",
        "refit: fitted",
        "refit: held out",
        "simulated",
        "TTFT ratio",
    ):
        made.add_column(head, justify="right")
    for row in rows:
        made.add_row(
            row.name,
            row.quantity,
            str(row.fitted_points),
            str(row.held_out_points),
            *(
                f"{value:.1%}"
                for value in (row.given_fitted, row.given_held_out, row.refit_fitted, row.refit_held_out)
            ),
            "–" if row.simulated is None else f"{row.simulated:.1%}",
            "–" if row.first_token_ratio is None else f"{row.first_token_ratio:.2f}",
        )
    Console().print(made)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


def _experiment(file: str, traces: Path) -> tuple[Path, Experiment]:
    from sim.experiments.files_io import ExperimentError, find, load_experiment

    try:
        path = find(file)
        return path, load_experiment(path, traces)
    except (ExperimentError, OSError, UnicodeDecodeError) as error:
        _fail(str(error))


def _part(experiment: Experiment, loads: list[str] | None, seeds: int | None) -> Experiment:
    """The experiment with fewer loads or seeds; run.json and the report say what was run."""
    if loads:
        kept = {load.name: load for load in experiment.loads}
        unknown = [name for name in loads if name not in kept]
        if unknown:
            _fail(f"There is no load {unknown[0]!r}; there are {', '.join(kept)}.")
        experiment = experiment.model_copy(update={"loads": [kept[name] for name in loads]})
    if seeds is not None:
        experiment = experiment.model_copy(update={"seeds": experiment.seeds[:seeds]})
    return experiment


def _fail(message: str) -> NoReturn:
    from rich.console import Console

    Console(stderr=True).print(f"[red]error:[/] {message.replace('[', chr(92) + '[')}", soft_wrap=True)
    raise typer.Exit(1)


class _Progress:
    """A progress bar as a context that yields what is called with the number done."""

    def __init__(self, console: Any, title: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Any:
        self._progress.start()
        return lambda count: self._progress.update(self._task, completed=count)

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def _print(console: Any, experiment: Experiment, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from sim.experiments.stats import Cells
    from sim.report.page import load_title
    from sim.report.tables import TERMINAL, main_rows

    cells = Cells(rows)
    for load in cells.loads:
        made = Table(title=load_title(experiment, cells, load), title_justify="left", box=None)
        made.add_column("arm", no_wrap=True)
        for metric in TERMINAL:
            made.add_column(metric.title, justify="right")
        for name, texts, verdicts in main_rows(cells, load, TERMINAL, interval=False):
            made.add_row(name, *(f"[bold]{t}[/]" if v else t for t, v in zip(texts, verdicts, strict=True)))
        console.print(made)


def _render(out: Path) -> None:
    from sim.experiments.store import read, read_requests
    from sim.report.page import render

    experiment, recorded, rows = read(out)
    page = render(experiment, recorded, rows, read_requests(out))
    (out / "report.html").write_text(page, encoding="utf-8")
