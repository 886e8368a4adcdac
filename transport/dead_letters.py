"""Unusable records go to ``fleet.dead`` with reason and origin; too many of them stop the consumer."""

from __future__ import annotations

from collections import deque

import structlog
from aiokafka import AIOKafkaProducer

from schemas.codec import Headers, Refused, digest, headers_for, schema_header, to_json
from schemas.operations import DeadLetter
from schemas.topics import DEAD
from transport.clock import now_ms

log = structlog.get_logger(__name__)


class TooManyDeadLetters(RuntimeError):  # noqa: N818 - reads as what happened
    """A bad deployment's output: better to stop and be looked at than to move all of it aside."""


class DeadLetterWriter:
    """Writes dead letters and keeps count.

    Raises TooManyDeadLetters when ``run_limit`` records in a row, or more than ``ratio_limit`` of the last
    ``window`` ones, were refused.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        component: str,
        *,
        run_limit: int = 1000,
        ratio_limit: float = 0.5,
        window: int = 2000,
    ) -> None:
        self._producer = producer
        self._component = component
        self._run_limit = run_limit
        self._ratio_limit = ratio_limit
        self._last: deque[bool] = deque(maxlen=window)
        self._bad_in_window = 0
        self._run = 0
        self.count = 0

    def accepted(self, records: int = 1) -> None:
        """Tell of records that could be used."""
        if records <= 0:
            return
        self._run = 0
        if not self._bad_in_window and len(self._last) == self._last.maxlen:
            return  # nothing that good ones could push out
        for _ in range(min(records, self._last.maxlen or 0)):
            self._note(False)

    async def write(
        self, topic: str, partition: int, offset: int, headers: Headers, value: bytes | None, refused: Refused
    ) -> None:
        """Put one record aside; returns when the broker has the dead letter."""
        letter = DeadLetter(
            origin_topic=topic,
            origin_partition=partition,
            origin_offset=offset,
            at_ms=now_ms(),
            component=self._component,
            kind=refused.kind,
            reason=refused.reason[:500],
            schema_header=schema_header(headers),
            size_bytes=len(value or b""),
            sha256=digest(value),
        )
        await self._producer.send_and_wait(
            DEAD.name, to_json(letter), key=topic.encode(), headers=headers_for(letter)
        )
        self.count += 1
        self._run += 1
        self._note(True)
        log.warning("dead_letter", topic=topic, partition=partition, offset=offset, reason=refused.reason)
        full = len(self._last) == self._last.maxlen
        if self._run >= self._run_limit or (
            full and self._bad_in_window > self._ratio_limit * len(self._last)
        ):
            raise TooManyDeadLetters(
                f"{self._component}: {self._run} records in a row and {self._bad_in_window} of the last "
                f"{len(self._last)} on {topic} could not be used (last reason: {refused.reason}). "
                "Stopped, so that the rest can be read once the writer or this reader is mended."
            )

    def _note(self, bad: bool) -> None:
        if len(self._last) == self._last.maxlen:
            self._bad_in_window -= self._last[0]
        self._last.append(bad)
        self._bad_in_window += bad
