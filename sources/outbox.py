"""Telemetry on its way to the broker: sent as it comes, or rolled up while the broker is away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

from schemas.topics import TELEMETRY
from sources.buffer import RollupBuffer
from transport.producer import EventProducer

log = structlog.get_logger(__name__)

CONGESTED_EVENTS = 2_000
"""So many events that wait mean that the broker is away, though no send has failed yet (that takes 30 s)."""
DRAIN_EVENTS = 500


class TelemetryOutbox:
    """Live events go straight to the producer. Beyond its congestion they are rolled up, a second each."""

    def __init__(self, events: EventProducer, *, buffer_events: int) -> None:
        self._events = events
        self._buffer = RollupBuffer(buffer_events)
        self._buffering = False

    @property
    def buffered(self) -> int:
        """Rollups held here."""
        return len(self._buffer)

    @property
    def waiting(self) -> int:
        """Events not yet with the broker, rollups included."""
        return self._events.waiting + len(self._buffer)

    @property
    def dropped(self) -> int:
        """Events and rollups given up."""
        return self._events.dropped + self._buffer.dropped

    @property
    def healthy(self) -> bool:
        """False while the broker takes nothing."""
        return self._events.healthy and not self._buffering

    def put(self, events: Iterable[Any]) -> None:
        """Send these telemetry structs, or keep them until the broker is back."""
        self._decide()
        for event in events:
            if self._buffering:
                self._buffer.add(event)
            else:
                self._events.emit(TELEMETRY, event)
        if self._buffer and not self._buffering and self._events.waiting < DRAIN_EVENTS:
            for event in self._buffer.take(DRAIN_EVENTS):
                self._events.emit(TELEMETRY, event)

    def _decide(self) -> None:
        away = not self._events.healthy or self._events.waiting >= CONGESTED_EVENTS
        if away and not self._buffering:
            log.warning("telemetry_rolled_up", waiting=self._events.waiting)
        elif self._buffering and not away:
            log.info("telemetry_sent_again", rollups=len(self._buffer), dropped=self._buffer.dropped)
        self._buffering = away

    def close(self) -> None:
        """Hand all that is held to the producer, whose own closing sends it or says how much was lost."""
        for event in self._buffer.take(len(self._buffer)):
            self._events.emit(TELEMETRY, event)
