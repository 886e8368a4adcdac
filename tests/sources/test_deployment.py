"""The systemd unit and the DaemonSet say what the agent takes: its own command line and checks read them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from aiohttp import web

from sources.agent import AgentSettings, SourceAgent
from sources.discovery.config import parse_config
from sources.discovery.kubernetes import ACCOUNT, Cluster
from sources.http import application
from tokenfleet.commands import source

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "infra/systemd/tokenfleet-source.service"
MANIFEST = ROOT / "infra/kubernetes/source-daemonset.yaml"


def _options(words: list[str]) -> dict[str, Any]:
    """The agent's options as its own command line reads them; raises on one that there is not."""
    app = typer.Typer()
    source.register(app)
    app.command("other")(lambda: None)
    command = typer.main.get_command(app)
    assert words[0] == "source"
    group = command.commands["source"]  # type: ignore[attr-defined]
    return dict(group.make_context("source", words[1:]).params)


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture
def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (one,) = manifest["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return dict(one)


def _unit_words() -> list[str]:
    line = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


def test_the_units_command_is_one_that_the_agent_takes() -> None:
    program, *words = _unit_words()
    assert program.endswith("/tokenfleet")
    options = _options(words)
    assert options["agent_id"] == "source-%H"
    assert str(options["config"]) == "${TOKENFLEET_SOURCE_CONFIG}"
    assert options["host"] == "127.0.0.1"
    named = set(re.findall(r"\$\{(\w+)\}", " ".join(words)))
    assert named == set(re.findall(r"^#   (\w+)=", UNIT.read_text(), re.M)), "each variable is explained"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_itself_has_nothing_to_say(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(_unit_words()[0], sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []


def test_the_daemonsets_command_is_one_that_the_agent_takes(container: dict[str, Any]) -> None:
    options = _options(container["args"])
    assert options["agent_id"] == "source-$(NODE_NAME)"
    assert options["host"] == "0.0.0.0"
    assert options["port"] == container["ports"][0]["containerPort"]
    known = {one["name"] for one in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= known
    (mount,) = container["volumeMounts"]
    assert str(options["config"]).startswith(mount["mountPath"] + "/")
    assert "subPath" not in mount


def test_its_configuration_is_one_that_the_agent_takes(
    manifest: dict[str, Any], container: dict[str, Any]
) -> None:
    data = manifest["ConfigMap"]["data"]
    name = Path(_options(container["args"])["config"]).name
    (service,) = parse_config(data[name], name).kubernetes
    assert service.same_node
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "n1"}
    assert Cluster.of(service, inside, ACCOUNT).node == "n1"
    assert "NODE_NAME" in {one["name"] for one in container["env"]}


def test_its_account_may_do_what_discovery_does_and_no_more(manifest: dict[str, Any]) -> None:
    assert manifest["ClusterRole"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    ]
    account = manifest["ServiceAccount"]["metadata"]
    (subject,) = manifest["ClusterRoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert manifest["ClusterRoleBinding"]["roleRef"]["name"] == manifest["ClusterRole"]["metadata"]["name"]
    pod = manifest["DaemonSet"]["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == account["name"]
    assert pod["metadata"]["labels"] == manifest["DaemonSet"]["spec"]["selector"]["matchLabels"]


def test_its_probes_ask_what_the_agent_answers(container: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("endpoints: []")
    app: web.Application = application(SourceAgent(AgentSettings("127.0.0.1:1", config)))
    paths = {route.resource.canonical for route in app.router.routes() if route.resource is not None}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in paths
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
