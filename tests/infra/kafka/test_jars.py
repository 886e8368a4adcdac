"""The broker's jars: fetched once, verified, published as a whole or not at all. No network is used here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from infra.errors import StackError
from infra.kafka import jars

CONTENT = {"org.example:broker:4.0": b"broker", "org.example:logging:2.0": b"logging"}


@dataclass
class FakeArtifact:
    coordinate: str
    repository: FakeRepository

    def resolve(self) -> Path:
        """As jgo: a file that is already in the local repository is returned as it is."""
        path = self.repository.folder / self.coordinate.replace(":", "-")
        if not path.exists():
            content = self.repository.serve(self.coordinate)
            self.repository.served.append(self.coordinate)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path


@dataclass
class FakeDependency:
    artifact: FakeArtifact


@dataclass
class FakeRepository:
    serve: Callable[[str], bytes]
    folder: Path = Path()
    served: list[str] = field(default_factory=list)

    def create_dependency(self, coordinate: str) -> FakeDependency:
        return FakeDependency(FakeArtifact(coordinate, self))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], bytes]], FakeRepository]:
    """Put a repository that answers with `serve` in place of Maven's, and pin the two small jars above."""
    pins = {coordinate: hashlib.sha256(content).hexdigest() for coordinate, content in CONTENT.items()}
    monkeypatch.setattr(jars, "pinned_jars", lambda: pins)
    monkeypatch.setattr("time.sleep", lambda _: None)

    def put(serve: Callable[[str], bytes]) -> FakeRepository:
        repository = FakeRepository(serve)

        def context(folder: Path) -> FakeRepository:
            repository.folder = folder
            return repository

        monkeypatch.setattr(jars, "_maven_context", context)
        return repository

    return put


Use = Callable[[Callable[[str], bytes]], FakeRepository]


def refuse(coordinate: str) -> bytes:
    raise requests.ConnectionError("no route to host")


def test_the_second_call_needs_no_network(tmp_path: Path, use: Use) -> None:
    repository = use(CONTENT.__getitem__)
    steps: list[tuple[int, int]] = []
    folder = jars.fetch_jars(tmp_path, lambda done, total: steps.append((done, total)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "broker-4.0.jar": b"broker",
        "logging-2.0.jar": b"logging",
    }
    assert sorted(repository.served) == sorted(CONTENT)
    assert steps == [(1, 2), (2, 2)]
    use(refuse)
    assert jars.fetch_jars(tmp_path) == folder
    assert jars.kafka_class_path(tmp_path) == f"{folder}/*"


def test_without_network_and_cache_there_is_one_sentence_and_no_folder(tmp_path: Path, use: Use) -> None:
    use(refuse)
    with pytest.raises(
        StackError, match=r"cannot be reached \(ConnectionError\); connect to the network"
    ) as error:
        jars.fetch_jars(tmp_path)
    assert "\n" not in str(error.value)
    assert not jars.jars_cached(tmp_path)
    assert not jars.jars_dir(tmp_path).exists()


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path, use: Use) -> None:
    use(lambda coordinate: b"something else")
    with pytest.raises(StackError, match="SHA-256 differs"):
        jars.fetch_jars(tmp_path)
    assert not jars.jars_cached(tmp_path)


def test_a_download_that_was_cut_off_is_made_good(tmp_path: Path, use: Use) -> None:
    answers = iter([b"bro", b"broker"])
    repository = use(lambda coordinate: next(answers) if "broker" in coordinate else CONTENT[coordinate])
    folder = jars.fetch_jars(tmp_path)
    assert (folder / "broker-4.0.jar").read_bytes() == b"broker"
    assert len(repository.served) == 3


def test_a_failed_try_leaves_what_it_fetched_for_the_next(tmp_path: Path, use: Use) -> None:
    use(lambda coordinate: CONTENT[coordinate] if "broker" in coordinate else refuse(coordinate))
    with pytest.raises(StackError, match=r"org\.example:logging:2\.0"):
        jars.fetch_jars(tmp_path)
    repository = use(CONTENT.__getitem__)
    jars.fetch_jars(tmp_path)
    assert repository.served == ["org.example:logging:2.0"]


def test_a_jar_that_was_deleted_from_the_cache_is_fetched_again(tmp_path: Path, use: Use) -> None:
    use(CONTENT.__getitem__)
    (jars.fetch_jars(tmp_path) / "broker-4.0.jar").unlink()
    assert not jars.jars_cached(tmp_path)
    assert (jars.fetch_jars(tmp_path) / "broker-4.0.jar").read_bytes() == b"broker"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, use: Use) -> None:
    use(CONTENT.__getitem__)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StackError, match=r"cannot be stored in .*TOKENFLEET_CACHE"):
        jars.fetch_jars(tmp_path / "file" / "cache")


def test_the_cache_folder_follows_the_environment() -> None:
    assert jars.cache_dir({"TOKENFLEET_CACHE": "/a"}) == Path("/a")
    assert jars.cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/tokenfleet")
    assert jars.cache_dir({}) == Path.home() / ".cache" / "tokenfleet"


def test_the_committed_pins_hold_the_broker_its_log_binding_and_no_address() -> None:
    pins = jars.pinned_jars()
    assert jars.KAFKA in pins
    assert jars.LOG_BINDING in pins
    assert all(len(digest) == 64 and int(digest, 16) for digest in pins.values())
    assert all(coordinate.count(":") == 2 and "/" not in coordinate for coordinate in pins)
