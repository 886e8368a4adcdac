"""The load generator's own books: one record per intent, kept in a file and in memory.

It is the reference that the event log and the store are compared with, so it never depends on either.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
import structlog

from sim.loadgen.retry import AttemptEnd, Cause

_log = structlog.get_logger(__name__)

_NO_DECISION = (400, 401, 404)
_RECENT = 256  # finished intents that the live view's percentiles look back on


class LedgerError(ValueError):
    """A ledger file that can't be used; the message is one sentence."""


class AttemptRecord(msgspec.Struct, kw_only=True):
    """One attempt of an intent. Instants are ms since 1970; None is unknown or never happened.

    `decision_id`, `instance`, `region` are what the router's response headers said. `sent`: the request's
    head went out on a connection, so a router may know of it.
    """

    attempt: int
    router: str
    start_epoch_ms: float
    sent: bool = False
    finish_epoch_ms: float | None = None
    end: AttemptEnd | None = None
    status: int | None = None
    error: str | None = None
    decision_id: str | None = None
    instance: str | None = None
    region: str | None = None
    first_token_epoch_ms: float | None = None
    tokens: int = 0
    cached_tokens: int | None = None
    retry_after_ms: float | None = None


class IntentRecord(msgspec.Struct, kw_only=True):
    """One intent, from its first attempt to its end.

    Durations are wall-clock ms; so are the SLOs, as enforced (a run at speed 2 halves them). `ttft_ms` runs
    from the start of the *first* attempt to the first token of the last one; `tpot_ms` is that answer's mean
    time per output token after the first (None below two tokens). `tokens` are the last attempt's output
    tokens; `wasted_tokens` were delivered by attempts whose answer was thrown away. `lag_ms`: how late the
    generator was in starting it.
    """

    intent_id: str
    service_class: str
    tenant: str
    entry_region: str
    residency: str | None
    input_tokens: int
    output_tokens: int
    at_ms: float
    lag_ms: float
    start_epoch_ms: float
    ttft_slo_ms: float
    tpot_slo_ms: float
    cancel_after_tokens: int | None = None
    finish_epoch_ms: float | None = None
    cause: Cause | None = None
    error: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens: int = 0
    wasted_tokens: int = 0
    attempts: list[AttemptRecord] = []

    @property
    def within_slo(self) -> bool:
        """Finished, and TTFT and mean TPOT as agreed (an answer of one token has no TPOT to miss)."""
        return (
            self.cause is Cause.OK
            and self.ttft_ms is not None
            and self.ttft_ms <= self.ttft_slo_ms
            and (self.tpot_ms is None or self.tpot_ms <= self.tpot_slo_ms)
        )

    @property
    def must_be_logged(self) -> bool:
        """Whether the event log has to know of this intent.

        So it is where a router answered with a decision or a refusal of its own, and where this client
        itself gave up a request that was sent. An attempt whose connection broke may have died with its
        router before anything was logged. Requests refused as malformed, unauthorised or for an unknown
        model (400, 401, 404) are no decisions.
        """
        return any(
            attempt.decision_id is not None
            or (attempt.status is not None and attempt.status not in _NO_DECISION)
            or (attempt.sent and attempt.end in (AttemptEnd.TIMEOUT, AttemptEnd.CANCELLED))
            for attempt in self.attempts
        )

    @property
    def region(self) -> str | None:
        """The region that served the last attempt; None where no router said so."""
        return self.attempts[-1].region if self.attempts else None


@dataclass(frozen=True, slots=True)
class LiveView:
    """A snapshot for a progress display; `recent_ttft_ms` are the last few hundred finished intents'."""

    elapsed_ms: float
    planned: int
    offered: int
    in_flight: int
    finished: dict[str, int]
    offered_by_class: dict[str, int]
    within_slo_by_class: dict[str, int]
    retries: int
    tokens: int
    recent_ttft_ms: tuple[float, ...]


class Ledger:
    """Opens an append-only JSON-lines file, takes records as intents finish, and keeps them in memory.

    Use it as a context manager. A write that fails (a full disk) is counted in `write_errors` and logged;
    the record stays in `records`, and the run goes on. LedgerError where the file can't be opened or already
    holds records: the books of two runs must not mix.
    """

    def __init__(self, path: str | Path, *, planned: int) -> None:
        self.path = Path(path)
        self.planned = planned
        self.records: list[IntentRecord] = []
        self.in_flight: dict[str, IntentRecord] = {}
        self.write_errors = 0
        self._finished: Counter[str] = Counter()
        self._offered: Counter[str] = Counter()
        self._within: Counter[str] = Counter()
        self._retries = 0
        self._tokens = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._encoder = msgspec.json.Encoder()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("ab")
        except OSError as error:
            raise LedgerError(
                f"The ledger {self.path} can't be opened: {error.strerror or error}."
            ) from error
        if self._file.tell() > 0:
            self._file.close()
            raise LedgerError(
                f"The ledger {self.path} already holds records; give each run a file of its own."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def offered(self) -> int:
        """Intents started so far."""
        return len(self.records) + len(self.in_flight)

    def opened(self, record: IntentRecord) -> None:
        """An intent's first attempt is about to start."""
        self.in_flight[record.intent_id] = record
        self._offered[record.service_class] += 1

    def closed(self, record: IntentRecord) -> None:
        """An intent has its final cause: one line in the file, one record in memory."""
        self.in_flight.pop(record.intent_id, None)
        self.records.append(record)
        self._finished[record.cause or Cause.FAILED] += 1
        self._within[record.service_class] += record.within_slo
        self._retries += max(0, len(record.attempts) - 1)
        self._tokens += record.tokens + record.wasted_tokens
        if record.ttft_ms is not None:
            self._recent.append(record.ttft_ms)
        try:
            self._file.write(self._encoder.encode(record) + b"\n")
            self._file.flush()  # a record a line, out at once: a killed generator loses only what was open
        except (OSError, ValueError) as error:
            self.write_errors += 1
            if self.write_errors == 1:
                _log.error("ledger.write_failed", path=str(self.path), error=str(error))

    def live(self, elapsed_ms: float) -> LiveView:
        """The state right now."""
        return LiveView(
            elapsed_ms=elapsed_ms,
            planned=self.planned,
            offered=self.offered,
            in_flight=len(self.in_flight),
            finished={str(cause): count for cause, count in self._finished.items()},
            offered_by_class=dict(self._offered),
            within_slo_by_class=dict(self._within),
            retries=self._retries,
            tokens=self._tokens,
            recent_ttft_ms=tuple(self._recent),
        )

    def close(self) -> None:
        """Close the file; the records stay readable in memory."""
        try:
            self._file.close()
        except OSError as error:
            self.write_errors += 1
            _log.error("ledger.close_failed", path=str(self.path), error=str(error))


def read_ledger(path: str | Path) -> list[IntentRecord]:
    """The records of a ledger file; LedgerError names the first line that is none."""
    path = Path(path)
    try:
        lines: Iterable[bytes] = path.read_bytes().splitlines()
    except OSError as error:
        raise LedgerError(f"The ledger {path} can't be read: {error.strerror or error}.") from error
    decoder = msgspec.json.Decoder(IntentRecord)
    records: list[IntentRecord] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"Line {number} of the ledger {path} is not a record: {error}.") from error
    return records
