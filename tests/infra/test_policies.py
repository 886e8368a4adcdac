"""Policy files and their command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from infra.policies import PolicyFileError, load_policy
from minds.policy import CompiledPolicy
from tokenfleet.commands import policy as policy_command
from tokenfleet.commands import router as router_command

DEMO = Path(__file__).resolve().parents[2] / "infra" / "policies" / "demo.yaml"


def test_the_demo_s_policy_is_sound() -> None:
    row = load_policy(DEMO)
    compiled = CompiledPolicy(row)
    assert {name: level.deadline_ms for name, level in compiled.classes.items()} == {
        "interactive": 60_000.0,
        "long": 90_000.0,
        "batch": 120_000.0,
    }
    assert compiled.allowed_regions("eu") == {"eu-west"}
    assert compiled.capped("demo-8b@v1")
    assert sum(item.share for item in row.classes) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("classes: [{name: a, ttft_slo: 5}]", "classes[0].ttft_slo"),
        ("classes: [{name: a, ttft_slo_ms: -5}]", "classes[0].ttft_slo_ms"),
        ("classes: [{name: 'a b'}]", "classes[0].name"),
        ("clases: []", "clases"),
        ("residencies: [{name: eu, allowed_regions: []}]", "residencies[0].allowed_regions"),
        ("default_class: x", "default_class"),
        ("version: 3", "version"),
        ("switches: {slomax: maybe}", "switches.slomax"),
        ("- a", "mapping"),
        ("a: [", "YAML"),
    ],
)
def test_a_mistake_is_told_by_field(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(PolicyFileError) as error:
        load_policy(file)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_commands_fail_with_one_sentence(tmp_path: Path) -> None:
    app = typer.Typer()
    policy_command.register(app)
    router_command.register(app)
    result = CliRunner().invoke(
        app, ["policy", "apply", str(tmp_path / "none.yaml"), "--kafka", "127.0.0.1:1"]
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("error: The policy ")
    assert "can't be read" in result.stderr
