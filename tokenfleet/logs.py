"""Logging of commands: to stderr, so that stdout is free for results; without the Kafka client's repetitions.

Imports are inside, so that ``tokenfleet --help`` stays quick.
"""

from __future__ import annotations


def log_to_stderr() -> None:
    """For services: our own events from INFO on."""
    _configure("INFO")


def quiet_logs() -> None:
    """For commands that talk to a person and say themselves what goes wrong: errors only."""
    _configure("ERROR")


def _configure(level: str) -> None:
    import logging
    import sys

    import structlog

    # The client repeats itself several times a second while a broker is away; we say it once ourselves.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        # Looked up at each event: whoever replaces sys.stderr later must not leave us with a closed file.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
