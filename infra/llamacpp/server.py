"""One llama.cpp server process: ``python -m infra.llamacpp.server --port N [--model-file FILE]``.

The server is llama.cpp's own (https://github.com/ggml-org/llama.cpp/tree/master/tools/server), embedded by
the ``xllamacpp`` wheel. It answers ``/health``, ``/slots``, ``/metrics``, ``/v1/models``,
``/v1/chat/completions`` and ``/v1/completions``. It serves with one thread, so that several fit on a few
cores. SIGTERM and Ctrl-C end it at once: it keeps nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from infra.errors import StackError
from infra.llamacpp.tiny_model import CONTEXT_TOKENS, MODEL_SIZES, write_model
from infra.llamacpp.wheel import require_installed
from infra.ports import LOOPBACK, check_port_free

DEFAULT_SLOTS = 4
"""Requests that are computed together; more wait (``requests_deferred``)."""
_PROMPT_CACHE_MIB = 64
"""Of main memory for prompts whose slot was taken by another; llama.cpp's own default is 8 GiB."""
_WARNINGS = 2


def serve(model_file: Path, *, name: str, host: str, port: int, slots: int) -> object:
    """Start the server; it runs in threads of its own for as long as what is returned is kept.

    ``name`` is the model's in answers. Raises StackError, one sentence, where it can't start.
    """
    require_installed()
    import xllamacpp

    if host == LOOPBACK:
        check_port_free(port, "llama.cpp's server")
    if not model_file.is_file():
        raise StackError(f"There is no model file {model_file}.")
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file)
    params.model_alias = {name}
    params.hostnames = [host]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = CONTEXT_TOKENS * slots
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.warmup = False
    params.verbosity = _WARNINGS
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise StackError(
            f"llama.cpp's server can't serve {model_file} on {host}:{port}; it says why above ({error})."
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.llamacpp.server", description="Run one llama.cpp server."
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--model-file", type=Path, help="GGUF; default: a random model, written anew")
    parser.add_argument("--model-size", choices=sorted(MODEL_SIZES), default="tiny", help="of that model")
    parser.add_argument("--name", help="the model's name in answers; default: by its size")
    parser.add_argument("--slots", type=int, default=DEFAULT_SLOTS, help="requests computed together")
    options = parser.parse_args(arguments)
    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with ExitStack() as temporary:
        model_file = options.model_file
        try:
            if model_file is None:
                folder = temporary.enter_context(tempfile.TemporaryDirectory(prefix="tokenfleet-llamacpp-"))
                model_file = write_model(Path(folder) / "model.gguf", options.model_size)
            server = serve(
                model_file,
                name=options.name or model_name(options.model_size),
                host=options.host,
                port=options.port,
                slots=options.slots,
            )
        except StackError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        stop.wait()
        assert server is not None  # kept until here: its destructor ends it, after all open streams
    sys.stderr.flush()
    os._exit(0)


def model_name(size: str) -> str:
    """What a random model of this size is called in requests, answers and pools."""
    return f"{size}-llama"


if __name__ == "__main__":
    sys.exit(main())
