"""The audit commands, through the CLI, on a small data set."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from schemas.decisions import Candidate, DecisionInput, RowVersion
from schemas.operations import DeadLetter
from schemas.policy import PolicyRow, Residency, Tenant
from schemas.topics import DEAD, DECISIONS, OUTCOMES, POLICY
from sinks.audits import AuditError, parse_since
from tests.sinks.conftest import Put
from tests.sinks.events import Record, decision, envelope, outcome, row_record
from tokenfleet.commands import audit
from transport.clock import now_ms

T0 = now_ms() - 120_000
ACME = Tenant(tenant="acme", key_sha256="ab" * 32, residency="eu-only")
APP = typer.Typer()
audit.register(APP)


def _run(*arguments: str, url: str) -> Any:
    return CliRunner().invoke(APP, ["audit", *arguments, "--url", url], env={"COLUMNS": "250"})


def _policy(version: int, at_ms: int, **changes: Any) -> PolicyRow:
    given: dict[str, Any] = {
        "as_of_ms": at_ms,
        "valid_for_ms": 60_000.0,
        "epoch": 1,
        "version": version,
        "residencies": [Residency(name="eu-only", allowed_regions=["eu", "eu-2"])],
    }
    return PolicyRow(**{**given, **changes})


@pytest.fixture
def story(put: Put, endpoint: str) -> str:
    """Intent i1: failed on us-1, retried with success on eu-1, its second outcome logged twice."""
    seen = DecisionInput(
        code_version="1",
        seed=7,
        now_ms=T0,
        rows=[RowVersion(row="us-1", epoch=3, version=9)],
        candidates=[Candidate(instance="us-1", region="us", requests_running=4.0, score=1.5)],
    )
    decisions = [
        decision("d1", "i1", at_ms=T0, region="us", instance="us-1", input=seen),
        decision("d2", "i1", at_ms=T0 + 2000, attempt=2, intent_started_at_ms=T0, predicted_ttft_ms=140.0),
        decision("d3", "i2", at_ms=T0 + 3000),
    ]
    failed = outcome(
        "d1", "i1", cause="failed", at_ms=T0 + 1900, intent_started_at_ms=T0, region="us", instance="us-1",
        within_slo=False, wasted_tokens=3, output_tokens=3,
    )  # fmt: skip
    ok = outcome("d2", "i1", attempt=2, at_ms=T0 + 4000, intent_started_at_ms=T0)
    shed = outcome(
        "d4", "i3", cause="shed", rule="no_lease", at_ms=T0 + 4000, region=None, instance=None, ttft_ms=None,
        tpot_ms=None, output_tokens=None, wasted_tokens=None, within_slo=False, service_class="batch",
    )  # fmt: skip
    letter = DeadLetter(
        origin_topic="fleet.outcomes", origin_partition=1, origin_offset=5, at_ms=T0 + 1000, component="sink",
        kind="unparseable", reason="fleet.outcomes: not JSON.", size_bytes=3, sha256="0" * 64,
    )  # fmt: skip

    async def fill() -> None:
        await put(DECISIONS, [envelope(DECISIONS, decisions, offset=0)])
        await put(OUTCOMES, [envelope(OUTCOMES, [failed, ok, shed], offset=0)])
        await put(OUTCOMES, [envelope(OUTCOMES, [ok], offset=0, partition=1)])
        await put(DEAD, [Record(0, letter.model_dump_json().encode(), [("schema", b"dead/1")])])

    asyncio.run(fill())
    return endpoint


@pytest.mark.parametrize("wanted", ["i1", "d1", "d2"])
def test_a_request_by_intent_or_decision_id(story: str, tmp_path: Path, wanted: str) -> None:
    result = _run("request", wanted, "--json", str(tmp_path / "r.json"), url=story)
    assert result.exit_code == 0, result.output
    for text in (
        "Intent i1",
        "us-1",
        "failed",
        "eu-1",
        "d2",
        "us-1 3/9",
        "Logged more than once",
        "not JSON",
    ):
        assert text in result.stdout
    (intent,) = json.loads((tmp_path / "r.json").read_text())["intents"]
    assert [row["decision_id"] for row in intent["decisions"]] == ["d1", "d2"]
    assert [row["decision_id"] for row in intent["outcomes"]] == ["d1", "d2", "d2"]
    assert intent["summary"]["cause"] == "ok"
    assert intent["summary"]["attempts"] == 2
    assert intent["decisions"][0]["input"]["candidates"][0]["score"] == 1.5
    assert intent["dead_letters"][0]["origin_offset"] == 5


def test_an_open_request_and_an_unknown_one(story: str) -> None:
    result = _run("request", "d3", url=story)
    assert result.exit_code == 0
    assert "no outcome is stored yet" in result.stdout
    for unknown in ("nobody", "' OR 1 = 1 --", "a\\tb\t"):
        result = _run("request", unknown, url=story)
        assert result.exit_code == 1
        assert "error: Nothing is stored of" in result.stderr


def test_goodput_in_intents_and_tokens(story: str, tmp_path: Path) -> None:
    result = _run("goodput", "--since", "10m", "--json", str(tmp_path / "g.json"), url=story)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "g.json").read_text())
    groups = {row["name"]: row for row in report["groups"]}
    assert (groups["chat"]["offered"], groups["chat"]["good"], groups["chat"]["good_tokens"]) == (1, 1, 50)
    assert groups["chat"]["wasted"] == 3
    assert groups["chat"]["goodput_tokens_per_s"] == pytest.approx(50 / 600)
    assert (groups["batch"]["offered"], groups["batch"]["shed"], groups["batch"]["tokens"]) == (1, 1, None)
    assert groups["batch"]["ttft_p50_ms"] is None
    assert report["total"]["compliance"] == 0.5
    batch = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("batch")]
    assert batch[1][5:] == ["-"] * 6, "unmeasured latencies are a dash, never 0"
    for by, names in (("region", {"eu", "(none)"}), ("tenant", {"acme"}), ("all", {"all"})):
        result = _run("goodput", "--by", by, "--json", str(tmp_path / "g.json"), url=story)
        assert {row["name"] for row in json.loads((tmp_path / "g.json").read_text())["groups"]} == names


def test_goodput_of_nothing_and_bad_options(story: str) -> None:
    result = _run("goodput", "--since", "1s", url=story)
    assert result.exit_code == 0
    assert "No intent" in result.stdout
    for arguments in (("--since", "soon"), ("--since", "0m"), ("--by", "moon")):
        result = _run("goodput", *arguments, url=story)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")


async def _decide(put: Put, **changes: Any) -> None:
    await put(DECISIONS, [envelope(DECISIONS, [decision("d1", "i1", **{"at_ms": T0, **changes})], offset=0)])


@pytest.mark.parametrize(
    ("policies", "changes", "violations"),
    [
        ([], {}, 0),
        ([_policy(1, T0 - 60_000)], {"residency": "eu-only", "region": "eu-2"}, 0),
        ([_policy(1, T0 - 60_000)], {"residency": "eu-only", "region": "us"}, 1),
        ([_policy(1, T0 - 60_000)], {"residency": "moon-only"}, 1),
        ([], {"residency": "eu-only"}, 1),
        ([_policy(1, T0 - 60_000)], {"region": "us"}, 0),
        ([_policy(1, T0 - 60_000)], {"residency": "eu-only", "region": None, "verdict": "shed"}, 0),
        # as of the decision's time: allowed then, not allowed since
        ([_policy(1, T0 - 60_000), _policy(2, T0 + 60_000, residencies=[])], {"residency": "eu-only"}, 0),
        # not allowed any more, but a router may be a moment late, not two
        ([_policy(1, T0 - 60_000), _policy(2, T0 - 2_000, residencies=[])], {"residency": "eu-only"}, 0),
        ([_policy(1, T0 - 60_000), _policy(2, T0 - 20_000, residencies=[])], {"residency": "eu-only"}, 1),
        # the tenant's forced residency counts, whatever the request said
        (
            [
                _policy(
                    1, T0 - 60_000, tenants=[Tenant(tenant="acme", key_sha256="a" * 64, residency="eu-only")]
                )
            ],
            {"region": "us"},
            1,
        ),
    ],
)
def test_residency_against_the_policy_of_the_time(
    put: Put, endpoint: str, policies: list[PolicyRow], changes: dict[str, Any], violations: int
) -> None:
    async def fill() -> None:
        await put(POLICY, [row_record(row, offset=number) for number, row in enumerate(policies)])
        await _decide(put, **changes)

    asyncio.run(fill())
    result = _run("residency", url=endpoint)
    assert result.exit_code == (1 if violations else 0), result.output
    checked = 0 if changes.get("verdict") == "shed" else 1
    assert f"{checked} dispatched decisions checked" in result.stdout
    assert (f"{violations} violations" if violations else "no violation") in result.stdout
    assert ("d1" in result.stdout) == bool(violations)


def test_digests_of_keys_are_not_stored(put: Put, endpoint: str) -> None:
    asyncio.run(_put_one(put, _policy(1, T0, tenants=[ACME])))
    with urllib.request.urlopen(f"{endpoint}/?query=SELECT%20*%20FROM%20policy_log") as answer:
        text = answer.read().decode()
    assert "acme" in text
    assert "abab" not in text


async def _put_one(put: Put, row: PolicyRow) -> None:
    await put(POLICY, [row_record(row, offset=0)])


def test_no_endpoint_is_a_sentence() -> None:
    result = _run("goodput", url="http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "No ClickHouse endpoint answered at http://127.0.0.1:9/" in result.stderr
    result = _run("residency", url="nonsense")
    assert result.exit_code == 1
    assert "is not a URL" in result.stderr


def test_time_spans() -> None:
    assert [parse_since(text) for text in ("90s", "15m", "1.5h", "2d")] == [90, 900, 5400, 172_800]
    for text in ("", "15", "m", "-1s", "0s", "91d", "1w"):
        with pytest.raises(AuditError):
            parse_since(text)
