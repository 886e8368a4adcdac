"""The list of engines: refused with a sentence, followed when it changes, never lost by half a write."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sources.discovery.config import ConfigError, parse_config, read_config
from sources.discovery.file import WatchedFile

ONE = {
    "instance": "eu-0",
    "engine": "vllm",
    "url": "http://127.0.0.1:8101/",
    "region": "eu",
    "pools": ["llama@v1"],
}


def _text(*endpoints: dict[str, object]) -> str:
    return yaml.safe_dump({"endpoints": list(endpoints)})


def test_a_list_with_all_that_can_be_said() -> None:
    full = ONE | {
        "served_model": "tiny",
        "roles": ["decode"],
        "tokenizer": "bytes",
        "draining": True,
        "host": "node-1",
        "gpus": ["GPU-a", "GPU-b"],
        "engine": "llamacpp",
    }
    (endpoint,) = parse_config(_text(full), "f.yaml").endpoints
    assert endpoint.url == "http://127.0.0.1:8101"
    assert endpoint.engine == "llama.cpp"
    assert (endpoint.served_model, endpoint.roles, endpoint.draining) == ("tiny", ["decode"], True)
    assert (endpoint.host, endpoint.gpus) == ("node-1", ["GPU-a", "GPU-b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoints: [", "not YAML"),
        ("- a", "a list `endpoints`"),
        ("", "a list `endpoints`"),
        ("endpoints: 3", "endpoints: Input should be a valid list"),
        ("endpoints: []\nintervall: 3", "intervall: Extra inputs"),
        (_text(ONE, ONE), "the instance eu-0 is listed twice"),
        (_text(ONE | {"engine": "vlm"}), "no mapping for the engine 'vlm'; there are"),
        (_text(ONE | {"pools": []}), "endpoints.0.pools"),
        (_text(ONE | {"pools": ["a@1", "a@1"]}), "a pool is listed twice"),
        (_text(ONE | {"pools": ["llama"]}), "endpoints.0.pools.0"),
        (_text(ONE | {"url": "127.0.0.1:80"}), "endpoints.0.url"),
        (_text(ONE | {"url": "http://me:secret@h/"}), "leave it out"),
        (_text(ONE | {"url": "http://h/?key=1"}), "no query"),
        (_text(ONE | {"region": "e u"}), "endpoints.0.region"),
        (_text({k: v for k, v in ONE.items() if k != "region"}), "endpoints.0.region: Field required"),
    ],
)
def test_a_wrong_list_says_what_and_where(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f.yaml")
    assert said in str(refused.value)
    assert str(refused.value).startswith("f.yaml")
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "bin.yaml")


def test_a_change_counts_when_two_polls_saw_it(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(_text(ONE, ONE | {"instance": "eu-1"}))
    file = WatchedFile.load(path)
    assert not file.poll()
    path.write_text(_text(ONE))  # perhaps half of a longer list
    assert not file.poll()
    path.write_text(_text(ONE, ONE | {"instance": "eu-2"}))
    assert not file.poll()
    assert file.poll()
    assert [endpoint.instance for endpoint in file.config.endpoints] == ["eu-0", "eu-2"]
    assert not file.poll()


def test_a_broken_or_vanished_file_keeps_the_last_good_list(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(_text(ONE))
    file = WatchedFile.load(path)
    path.write_text("endpoints: [{instance: x}]")
    assert [file.poll(), file.poll()] == [False, False]
    assert file.error is not None
    assert "endpoints.0" in file.error
    path.unlink()
    assert not file.poll()
    assert file.error is not None
    assert "can't be read" in file.error
    assert [endpoint.instance for endpoint in file.config.endpoints] == ["eu-0"]
    path.write_text(_text(ONE))
    assert [file.poll(), file.poll()] == [False, False], "the same list is no change"
    assert file.error is None
