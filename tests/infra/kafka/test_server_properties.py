"""The broker's settings: loopback only, well-formed, and the same in the compose file."""

from __future__ import annotations

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.kafka import server_properties
from infra.kafka.jars import KAFKA_VERSION
from infra.kafka.server_properties import broker_settings, container_environment, render


def load_properties(text: str) -> dict[str, str]:
    """The part of java.util.Properties.load that matters here: one setting a line, backslash escapes."""

    def unescape(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match[2], match[2])

    pairs = (line.split("=", 1) for line in text.splitlines())
    units = {name: re.sub(r"\\(?:u([0-9a-f]{4})|(.))", unescape, value.lstrip(" ")) for name, value in pairs}
    return {
        name: value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        for name, value in units.items()
    }


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_value_survives_the_properties_file(value: str) -> None:
    text = render({"log.dirs": value, "node.id": "1"})
    assert text.isascii()
    assert load_properties(text) == {"log.dirs": value, "node.id": "1"}


def test_every_listener_is_on_loopback() -> None:
    settings = broker_settings(9092, 9093, "kafka")
    addresses = [settings["advertised.listeners"], *settings["listeners"].split(",")]
    assert [address.split("://")[1] for address in addresses] == [
        "127.0.0.1:9092",
        "127.0.0.1:9092",
        "127.0.0.1:9093",
    ]
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:9093"


def test_one_node_replicates_nothing_and_makes_no_topic_by_accident() -> None:
    settings = broker_settings(1, 2, "kafka")
    assert {
        value for name, value in settings.items() if re.search(r"replication\.factor|min\.isr", name)
    } == {"1"}
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["group.initial.rebalance.delay.ms"] == "0"


def test_the_compose_file_runs_the_same_broker_on_this_machine_only() -> None:
    path = server_properties.__file__.replace("kafka/server_properties.py", "compose.yaml")
    with open(path, encoding="utf-8") as file:
        services = yaml.safe_load(file)["services"]
    ports = [port for service in services.values() for port in service["ports"]]
    assert ports == ["127.0.0.1:9092:9092", "127.0.0.1:8123:8123"]
    assert all(":" in service["image"] and "latest" not in service["image"] for service in services.values())
    environment = services["kafka"]["environment"]
    assert environment.pop("KAFKA_LOG_DIRS") in services["kafka"]["volumes"][0]
    assert environment == container_environment(9092)
    assert services["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
