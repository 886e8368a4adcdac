"""What a local stack consists of, by kind of engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.engines import engine_children, engines_in_words
from infra.errors import StackError
from infra.layout import ENGINE_KINDS, Layout, engine_kind, free_ports, regions_of
from infra.llamacpp.wheel import is_installed
from sources.discovery.config import read_config


@pytest.mark.parametrize("kind", ENGINE_KINDS)
def test_every_part_has_a_port_of_its_own(kind) -> None:
    ports = free_ports(regions_of(kind))
    assert len(set(ports.values())) == len(ports)
    assert 4 <= sum(regions_of(kind).values()) <= 8
    assert set(regions_of(kind)) == {"eu-west", "us-east", "ap-south"}


def test_an_unknown_kind_is_one_sentence_that_names_the_known() -> None:
    with pytest.raises(StackError, match=r"'warp'.*emulated or llama\.cpp"):
        engine_kind("warp")


@pytest.mark.skipif(not is_installed(), reason="no llama.cpp: the xllamacpp wheel is not installed")
def test_llamacpp_servers_are_a_process_each_and_the_source_can_read_their_list(tmp_path: Path) -> None:
    regions = regions_of("llama.cpp")
    layout = Layout(tmp_path, free_ports(regions), regions=regions, engine="llama.cpp")
    listed = tmp_path / "endpoints.yaml"
    children = engine_children(layout, tmp_path, listed)
    endpoints = {one.instance: one for one in read_config(listed).endpoints}
    assert [child.name for child in children] == list(endpoints)
    for child in children:
        endpoint = endpoints[child.name]
        assert (endpoint.engine, endpoint.served_model) == ("llama.cpp", layout.model)
        assert (endpoint.url, endpoint.pools) == (layout.url(child.name), [f"{layout.model}@v1"])
        assert child.restart
        assert str(tmp_path / "model.gguf") in child.argv
    assert engines_in_words(layout) == "5 llama.cpp servers with a tiny random model"


def test_emulated_engines_are_one_process(tmp_path: Path) -> None:
    layout = Layout(tmp_path, free_ports())
    (child,) = engine_children(layout, tmp_path, tmp_path / "endpoints.yaml")
    instances = yaml.safe_load((tmp_path / "instances.yaml").read_text())["instances"]
    assert len(instances) == layout.engine_count() == 8
    assert {one["model"] for one in instances} == {layout.model}
    assert child.name == "engines"
