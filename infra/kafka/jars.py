"""The jars of Apache Kafka: pinned in `jars.json` by coordinate and SHA-256, fetched once through `jgo`.

`jars.json` is to the jars what the compiled requirement files are to the Python packages: the whole
dependency tree, resolved ahead of time, with hashes and without addresses. `python -m infra.kafka.jars`
resolves it anew with jgo's pure-Python Maven resolver (no Maven, no Java).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import StackError

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION = "4.3.1"

KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"

LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
"""Kafka brings SLF4J 1.7 and log4j 2 but nothing that joins them: without this its log stays empty."""

CACHE_VARIABLE = "TOKENFLEET_CACHE"
"""Environment variable that names the cache folder (default: `tokenfleet` in the user's cache folder)."""

_LOCK_FILE = Path(__file__).with_name("jars.json")
_TRIES = 3
_PARALLEL_DOWNLOADS = 4

Progress = Callable[[int, int], None]
"""Called with (jars fetched, jars in all)."""


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder for what is fetched once and may be deleted at any time."""
    if named := environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfleet"


@cache
def pinned_jars() -> Mapping[str, str]:
    """`group:artifact:version` of every jar that the broker needs, with its SHA-256 in hex."""
    jars: dict[str, str] = json.loads(_LOCK_FILE.read_text(encoding="utf-8"))
    return jars


def jars_dir(cache: Path | None = None) -> Path:
    """Folder that holds the jars once they are fetched; its name changes with the pinned set."""
    digest = hashlib.sha256(json.dumps(dict(pinned_jars()), sort_keys=True).encode()).hexdigest()
    return (cache or cache_dir()) / f"kafka-{KAFKA_VERSION}-{digest[:12]}"


def jars_cached(cache: Path | None = None) -> bool:
    """Say whether all jars are there, so that the broker starts without the network."""
    folder = jars_dir(cache)
    return all((folder / _file_name(coordinate)).is_file() for coordinate in pinned_jars())


def kafka_class_path(cache: Path | None = None, progress: Progress | None = None) -> str:
    """Return the class path of the broker, after fetching what is missing.

    Raises `StackError` when a jar cannot be fetched or is not the pinned one.
    """
    return str(fetch_jars(cache, progress) / "*")


def fetch_jars(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder with all jars; fetch, verify and publish them as a whole when it is not there.

    Several processes may call this at once: one fetches, the others wait for it.
    """
    root = cache or cache_dir()
    if jars_cached(root):
        return jars_dir(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(root / "kafka-jars.lock"):
            if not jars_cached(root):
                _fetch_all(root, progress)
    except OSError as error:
        raise StackError(
            f"The jars of Apache Kafka cannot be stored in {root} ({error.strerror or error}); "
            f"free some space there or name another folder in {CACHE_VARIABLE}."
        ) from error
    return jars_dir(root)


def _fetch_all(root: Path, progress: Progress | None) -> None:
    downloads = root / "kafka-downloads"  # kept after a failure: the next try fetches only what is missing
    context = _maven_context(downloads)
    coordinates = list(pinned_jars())
    with tempfile.TemporaryDirectory(dir=root, prefix="kafka-jars-") as workspace:
        complete = Path(workspace) / "jars"
        complete.mkdir()
        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS, thread_name_prefix="jar-fetch") as pool:
            try:
                fetched = pool.map(lambda coordinate: _fetch_one(context, coordinate), coordinates)
                for done, (coordinate, path) in enumerate(zip(coordinates, fetched, strict=True), start=1):
                    shutil.copyfile(path, complete / _file_name(coordinate))
                    if progress is not None:
                        progress(done, len(coordinates))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        target = jars_dir(root)
        shutil.rmtree(
            target, ignore_errors=True
        )  # some of its files were deleted, or it would not be refilled
        complete.rename(target)
    shutil.rmtree(downloads, ignore_errors=True)


def _fetch_one(context: MavenContext, coordinate: str) -> Path:
    import requests

    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(0.5 * attempt)
        try:
            path: Path = context.create_dependency(coordinate).artifact.resolve()
        except requests.RequestException as error:
            problem = f"the Maven repository cannot be reached ({type(error).__name__})"
            continue
        except RuntimeError:  # jgo's word for an answer other than 200 from every repository
            problem = "no Maven repository served it"
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() == pinned_jars()[coordinate]:
            return path
        path.unlink()  # cut off by an earlier interruption, or not what was pinned
        problem = "what was downloaded is not the pinned file, its SHA-256 differs"
    raise StackError(
        f"Apache Kafka {KAFKA_VERSION} is not in the cache yet and its jar {coordinate} is missing: "
        f"{problem}; connect to the network and run `tokenfleet doctor --fix`, or use a broker of your own "
        "with `--kafka HOST:PORT`."
    )


def _maven_context(repository: Path) -> MavenContext:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise StackError(
            "Apache Kafka cannot be fetched without the 'jgo' Python package; install tokenfleet[local]."
        ) from error
    remotes = {
        "central": MAVEN_CENTRAL_URL,
        **GlobalSettings.load().repositories,
    }  # a mirror: ~/.config/jgo.conf
    return MavenContext(
        resolver=PythonResolver(), repo_cache=repository, local_repos=[], remote_repos=remotes, timeout=30
    )


@contextmanager
def _one_at_a_time(lock_path: Path) -> Iterator[None]:
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go by the kernel when this process ends, however it ends
        yield


def _file_name(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def resolve_pins() -> dict[str, str]:
    """Resolve `KAFKA` with all that it needs at run time; returns what `jars.json` should hold."""
    with tempfile.TemporaryDirectory(prefix="kafka-resolve-") as workspace:
        context = _maven_context(Path(workspace))
        inputs, transitive = context.resolver.resolve([context.create_dependency(KAFKA)])
        needed = [*inputs, *(entry for entry in transitive if entry.scope in ("compile", "runtime"))]
        # The binding joins alone: it needs nothing that Kafka lacks, and its own parent's version rules,
        # resolved together with Kafka's, would bring older Jackson jars.
        needed.append(context.create_dependency(LOG_BINDING))
        return {
            f"{entry.groupId}:{entry.artifactId}:{entry.version}": hashlib.sha256(
                entry.artifact.resolve().read_bytes()
            ).hexdigest()
            for entry in sorted(needed, key=lambda entry: (entry.groupId, entry.artifactId))
        }


if __name__ == "__main__":
    _LOCK_FILE.write_text(json.dumps(resolve_pins(), indent=2) + "\n", encoding="utf-8")
