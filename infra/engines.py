"""The engines of a local stack as child processes, whichever kind they are."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from infra.layout import Layout
from infra.llamacpp.fleet import write_endpoints
from infra.llamacpp.tiny_model import write_model
from infra.llamacpp.wheel import require_installed
from infra.processes import ChildSpec
from infra.readiness import HttpReady


def engine_children(layout: Layout, folder: Path, endpoints: Path) -> list[ChildSpec]:
    """What to run; their files go to ``folder``, the discovery list of the source to ``endpoints``.

    Raises StackError where they can't run here.
    """
    if layout.engine == "llama.cpp":
        require_installed()
        model_file = write_model(folder / "model.gguf", layout.model_size, seed=layout.seed)
        engines = layout.real_engines()
        write_endpoints(endpoints, engines)
        return [engine.child(model_file) for engine in engines]
    instances = layout.instances()
    config = folder / "instances.yaml"
    config.write_text(yaml.safe_dump({"instances": instances}, sort_keys=False))
    argv = [sys.executable, "-m", "tokenfleet", "engines"]
    argv += ["--config", str(config), "--endpoints", str(endpoints)]
    ready = HttpReady(layout.url(str(instances[-1]["instance"])) + "/health")
    return [ChildSpec("engines", argv, ready=ready, restart=True)]


def engines_in_words(layout: Layout) -> str:
    """What they are, for people."""
    count = layout.engine_count()
    if layout.engine == "llama.cpp":
        return f"{count} llama.cpp servers with a {layout.model_size} random model"
    return f"{count} emulated vLLM instances"
