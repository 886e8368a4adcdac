"""Logging of a command: to stderr, at INFO, without the Kafka client's repetitions."""

from __future__ import annotations


def log_to_stderr() -> None:
    """Our own events to stderr, so that stdout is free for results."""
    import logging
    import sys

    import structlog

    # The client repeats itself several times a second while a broker is away; we say it once ourselves.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
