"""Versions of the model in an experiment: who asks for which, and set-ups that stop before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.experiments.cell import run_cell
from sim.experiments.files_io import ExperimentError
from sim.experiments.spec import VersionShares
from sim.experiments.versions import asking_for_versions
from sim.experiments.workload import Places, notes
from tests.sim.des.runs import intents
from tests.sim.experiments.small import TEXT, load

HIGH = "  - {name: high, rate_rps: 4}\n"


def with_load(*lines: str) -> str:
    """The tiny experiment with more said of its second load, from line 20 on."""
    assert HIGH in TEXT
    return TEXT.replace(
        HIGH, "  - name: high\n    rate_rps: 4\n" + "".join(f"    {line}\n" for line in lines)
    )


ROLL = 'operations: [{at_s: 5, do: roll_out, replicas: [1], version: "2"}]'


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        (['versions: [{shares: {"3": 1}}]'], 20, "no engine has or gets version '3'; there are 1"),
        ([ROLL, 'versions: [{shares: {"1": 1, "3": 1}}]'], 21, "version '3'; there are 1, 2"),
        ([ROLL, 'versions: [{shares: {"1": 0}}]'], 21, "sum above 0"),
        ([ROLL, 'versions: [{shares: {"1": -1, "2": 2}}]'], 21, "greater than or equal to 0"),
        ([ROLL, 'versions: [{shares: {"1": 1}, not_for: [eu]}]'], 21, "no residency class 'eu'"),
        (['versions: [{shares: {"1": 1}}, {shares: {newest: 1}}]'], 20, "begin at the same time"),
        ([ROLL.replace('"2"', '"1"')], 20, "replica 1 has version '1' already"),
        ([ROLL.replace('"2"', "newest")], 20, "stands for the bare model name"),
        ([ROLL.replace(', version: "2"', "")], 20, "'roll_out' needs a 'version'"),
        (
            ['operations: [{at_s: 1, do: fail, replicas: [1], version: "2"}]'],
            20,
            "a 'fail' has no version",
        ),
        (["operations: [{at_s: 1, do: start, replicas: [1]}]"], 20, "replica 1 is up then"),
        (["operations: [{at_s: 1, do: fail, replicas: [1, 1]}]"], 20, "named more than once"),
        (["operations: [{at_s: 1, do: fail, replicas: [7]}]"], 20, "no replica 7; they are numbered 0 to 1"),
        (
            [
                "operations:",
                "  - {at_s: 9, do: drain, replicas: [0]}",
                "  - {at_s: 1, do: fail, replicas: [0]}",
            ],
            21,
            "replica 0 was taken out before and not started since",
        ),
        (
            [
                ROLL,
                "users: 4",
                "clients: {loop: closed}",
                "versions:",
                '  - {shares: {"1": 1}}',
                '  - {at_s: 9, shares: {"2": 1}}',
            ],
            23,
            "open loop",
        ),
    ],
)
def test_an_impossible_set_up_names_its_line(tmp_path: Path, lines: list[str], line: int, says: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        load(tmp_path, with_load(*lines))
    told = [text for text in str(caught.value).splitlines() if text.startswith(f"tiny.yaml:{line}:")]
    assert any(says in text for text in told), str(caught.value)


def test_a_residency_class_whose_regions_never_get_the_version_is_named(tmp_path: Path) -> None:
    text = with_load(ROLL, "versions:", '  - {at_s: 9, shares: {"2": 1}}')
    text = text.replace("{region: a, engine: S2, count: 2}", "{region: b, engine: S2, count: 2}")
    text = text.replace(
        "fleet:\n",
        "fleet:\n  regions: [a, b]\n  links: [{between: [a, b], rtt_ms: 9}]\n  residency: {eu: [a]}\n",
    ).replace("  duration_s: 40\n", "  duration_s: 40\n  residency_shares: {eu: 0.1}\n")
    text = text.replace("oracles: [request, pooled, goodput, static]\n", "")
    with pytest.raises(ExperimentError, match=r"residency class 'eu' may not leave a, where version '2'"):
        load(tmp_path, text)
    assert load(tmp_path, text.replace('{"2": 1}}', '{"2": 1}, not_for: [eu]}')).loads[1].versions


def test_shares_move_whole_conversations_and_only_as_far_as_they_grow() -> None:
    specs = intents(3, 600, residencies=[None, "eu"])
    steps = [
        VersionShares(at_s=20, shares={"1": 0.5, "2": 0.5}, not_for=["eu"]),
        VersionShares(at_s=40, shares={"1": 0.2, "2": 0.8}, not_for=["eu"]),
        VersionShares(at_s=5, shares={"1": 1.0}),
    ]
    asked = asking_for_versions(specs, steps, 1)
    assert [spec.intent_id for spec in asked] == [spec.intent_id for spec in specs]
    by_time: dict[int, list[str | None]] = {0: [], 5: [], 20: [], 40: []}
    for spec in asked:
        begin = max(at for at in by_time if at * 1_000.0 <= spec.at_ms)
        if spec.residency == "eu":
            assert spec.model_version == (None if begin == 0 else "1")
        else:
            by_time[begin].append(spec.model_version)
    assert set(by_time[0]) == {None}  # the bare name
    assert set(by_time[5]) == {"1"}
    assert 0.3 < by_time[20].count("2") / len(by_time[20]) < 0.7
    assert 0.65 < by_time[40].count("2") / len(by_time[40]) < 0.95
    # Once on version 2, a conversation stays there while its share grows.
    moved: set[int] = set()
    for spec in asked:
        if len(spec.prefix_blocks) > 1 and spec.residency is None and spec.at_ms >= 20_000.0:
            if spec.prefix_blocks[1] in moved:
                assert spec.model_version == "2"
            elif spec.model_version == "2":
                moved.add(spec.prefix_blocks[1])
    assert moved
    assert asking_for_versions(specs, steps, 1) == asked
    assert asking_for_versions(specs, steps, 2) != asked
    assert asking_for_versions(specs, [], 1) == tuple(specs)


def test_asking_too_early_costs_good_intents_in_a_cell(tmp_path: Path) -> None:
    roll = 'operations: [{at_s: 2, do: roll_out, replicas: [1], load_s: 12, version: "2"}]'
    begins = {"in time": 40, "too early": 3}
    shares: dict[str, float] = {}

    def text(*lines: str) -> str:
        return with_load(*lines).replace("duration_s: 40", "duration_s: 100")

    for name, at_s in begins.items():
        steps = [roll, "versions:", '  - {shares: {"1": 1}}', f'  - {{at_s: {at_s}, shares: {{"2": 1}}}}']
        experiment = load(tmp_path, text(*steps).replace("rate_rps: 4", "rate_rps: 0.5"))
        places = Places(tmp_path, None)
        assert any("Which version" in said for said in notes(experiment, places))
        row = run_cell(experiment, experiment.arms[0], experiment.loads[1], 1, places, False).rows[0]
        shares[name] = row["good_share_intents"]
        assert (row["share_shed"] > 0) == (name == "too early")
    assert shares["too early"] < shares["in time"]
