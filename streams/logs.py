"""Logging of a worker: everything to stderr, the libraries' own chatter left out."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_stderr() -> None:
    """INFO for us, WARNING for Faust, mode and aiokafka.

    Their levels are set one by one: Faust started at WARNING would put the root logger at DEBUG, which
    costs a fifth of a core.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    for name in ("faust", "aiokafka", "mode", "asyncio", "streams.faust_tables", "streams.faust_transport"):
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
