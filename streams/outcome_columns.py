"""Outcomes as columns: what stage one needs of a batch's records, without a Python object for each event.

About 0.3 us an event of 200 bytes instead of 1.5 us (``schemas.projections``), which still judges all that is
odd. ``tests/streams/test_outcome_json.py`` holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from numpy.typing import NDArray

from minds.capacity.columns import Name
from minds.capacity.outcomes import OPTIONAL
from schemas.base import EARLIEST_MS, LATEST_MS, header_of
from schemas.codec import SCHEMA_HEADER
from schemas.envelopes import Envelope, envelope_header
from schemas.fastpath import projection_of, struct_of
from schemas.outcomes import CAUSES, Outcome
from streams import outcome_json as kernel
from streams.name_table import NameTable
from streams.record_batches import RecordBatch
from streams.record_scan import OFFSET, header_section

EVENT_FIELDS = (
    *("pool", "instance", "instance_boot", "region", "entry_region", "cause", "at_ms"),
    *("output_tokens", "wasted_tokens", "ttft_ms", "tpot_ms", "queue_ms", "within_slo"),
    *("deadline_at_ms", "work_tokens"),
)
"""What is read of an event, in the kernel's order."""
ENVELOPE_FIELDS = ("producer", "boot", "seq", "sent_at_ms", "events")
"""What an envelope holds, in the kernel's order."""
FIRST_ROOM = 4096
"""Events; grows."""


@dataclass(frozen=True, slots=True)
class Read:
    """The plain events of a batch in order, one a row of each column; the caller's to keep.

    ``name`` (int32) counts in ``OutcomeReader.names``, ``cause`` (int8) in ``schemas.outcomes.CAUSES``.
    Unknown figures are NaN where they are float64 and -1 where int64. ``odd`` are the places in
    ``batch.records`` of those that hold no plain event alone; none of their events is in the columns.
    ``records`` counts those that were looked at, odd ones among them.
    """

    name: NDArray[np.int32]
    cause: NDArray[np.int8]
    within_slo: NDArray[np.bool_]
    at_ms: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    wasted_tokens: NDArray[np.int64]
    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]
    queue_ms: NDArray[np.float64]
    deadline_at_ms: NDArray[np.int64]
    work_tokens: NDArray[np.float64]
    odd: list[int]
    records: int

    def __len__(self) -> int:
        return len(self.name)


class OutcomeReader:
    """Reads batches of fleet.outcomes. Holds the names of all that it has read until told to forget them."""

    def __init__(self) -> None:
        self._names = NameTable()
        self._grammar, self._state = _GRAMMAR.copy(), _STATE.copy()
        self._state[kernel.NAME_TABLE] = self._names.state.ctypes.data
        self._odd = np.empty(FIRST_ROOM, np.int64)
        self._columns = np.empty((11, 0), np.int64)
        self._room_for(FIRST_ROOM)

    @property
    def names(self) -> list[Name]:
        """What the column ``name`` counts in; grows with each read."""
        return self._names.names

    def forget_names(self) -> None:
        """Start ``names`` anew, as another list; the columns of earlier reads count in the old one."""
        self._names.forget()

    def read(self, batch: RecordBatch, not_before_ms: float, not_after_ms: float, from_offset: int) -> Read:
        """The events of the records from this offset on; those that ended beyond the two times are odd.

        Raises CorruptRecordException for a batch that is not what it says.
        """
        odd, records = self.add(batch, not_before_ms, not_after_ms, from_offset)
        return self.taken(odd, records)

    def add(
        self, batch: RecordBatch, not_before_ms: float, not_after_ms: float, from_offset: int
    ) -> tuple[list[int], int]:
        """As ``read``, but the events are left for ``taken``: a call for each batch would cost more than its
        events. Returns the places of its odd records, and how many records there were.
        """
        scan, state = batch.scan, self._state
        state[kernel.ODD] = 0
        if scan is None:
            offsets = [record.offset for record in batch.records]
            odd = [number for number, offset in enumerate(offsets) if offset >= from_offset]
            return odd, len(odd)
        table = scan.table
        records = len(table)
        if records > len(self._odd):
            self._odd = np.empty(2 * records, np.int64)
        state[kernel.FIRST_MS :] = *_whole_ms(not_before_ms, not_after_ms), from_offset
        begin = 0
        while True:
            begin = kernel.read_records(scan.data, table, begin, *_HEADERS, self._grammar, state, self._odd)
            if begin == records:
                break
            if state[kernel.FULL] == kernel.MORE_EVENTS:
                self._room_for(2 * self._columns.shape[1])
            else:
                self._names.grow()
        self._names.note()
        if records and table[0, OFFSET] < from_offset:
            records = int((table[:, OFFSET] >= from_offset).sum())
        return self._odd[: state[kernel.ODD]].tolist() if state[kernel.ODD] else [], records

    def taken(self, odd: Sequence[int] = (), records: int = 0) -> Read:
        """The events that were added since the last call; ``odd`` and ``records`` are for ``read``."""
        kept = self._columns[:, : self._state[kernel.COUNT]].copy()
        self._state[kernel.COUNT] = 0
        name, cause, within_slo, at_ms, output_tokens, wasted_tokens, deadline_at_ms = kept[:7]
        ttft_ms, tpot_ms, queue_ms, work_tokens = kept[7:].view(np.float64)
        return Read(
            name=name.astype(np.int32),
            cause=cause.astype(np.int8),
            within_slo=within_slo.astype(np.bool_),
            at_ms=at_ms,
            output_tokens=output_tokens,
            wasted_tokens=wasted_tokens,
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            queue_ms=queue_ms,
            deadline_at_ms=deadline_at_ms,
            work_tokens=work_tokens,
            odd=list(odd),
            records=records,
        )

    def _room_for(self, events: int) -> None:
        columns = np.empty((11, events), np.int64)
        columns[:, : self._columns.shape[1]] = self._columns
        self._columns = columns
        self._state[kernel.COLUMNS], self._state[kernel.ROOM] = columns.ctypes.data, events


def warm_up() -> None:
    """Compile what reading needs, or load it from where it was kept: seconds once, milliseconds after."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, 0, 1024)
    headers = [(SCHEMA_HEADER, header_of(Outcome).encode())]
    builder.append(0, timestamp=EARLIEST_MS, key=None, value=b"{}", headers=headers)
    raw = bytes(builder.build())
    reader = OutcomeReader()
    reader.read(RecordBatch(TopicPartition("", 0), DefaultRecordBatch(raw), 0, raw), 0.0, 0.0, 0)


def _whole_ms(not_before_ms: float, not_after_ms: float) -> tuple[int, int]:
    """The whole milliseconds between two bounds, either of which may be infinite or, then for none, NaN."""
    if not not_before_ms <= not_after_ms:
        return 1, 0
    return math.ceil(max(not_before_ms, 0.0)), math.floor(min(not_after_ms, float(LATEST_MS)))


def _entry(text: str, kind: int, least: int, most: int, nullable: bool) -> list[int]:
    if not text.isascii() or len(text) > kernel.TEXT_BYTES:
        raise ValueError(f"{text!r} is longer than the {kernel.TEXT_BYTES} ASCII letters that keys may have.")
    low, high = np.frombuffer(text.encode().ljust(kernel.TEXT_BYTES, b"\0"), "<i8").tolist()
    return [low, high, 0, 0, kind, least, most, nullable]


def _member(info: msgspec.structs.FieldInfo) -> list[int]:
    """The entry of a struct's field, from its type and bounds."""
    told: Any = msgspec.inspect.type_info(info.type)
    nullable = isinstance(told, msgspec.inspect.UnionType)
    if nullable:
        (told,) = (one for one in told.types if not isinstance(one, msgspec.inspect.NoneType))
    least: Any = 0
    most: Any = 0
    match told:
        case msgspec.inspect.StrType(min_length=least, max_length=most, pattern=None):
            kind = kernel.TEXT
        case msgspec.inspect.IntType(ge=least, le=most, gt=None, lt=None, multiple_of=None):
            kind = kernel.WHOLE
        case msgspec.inspect.FloatType(ge=least, le=most, gt=None, lt=None, multiple_of=None):
            kind = kernel.REAL
        case msgspec.inspect.BoolType():
            kind, most = kernel.FLAG, 1
        case msgspec.inspect.LiteralType(values=values) if set(values) == set(CAUSES):
            kind = kernel.NAMED
        case msgspec.inspect.ListType(min_length=1):
            kind = kernel.LIST
        case _:
            raise TypeError(
                f"{info.encode_name}: the kernel does not know {told}; teach streams.outcome_json."
            )
    if None in (least, most) or int(least) != least or int(most) != most:
        raise TypeError(f"{info.encode_name}: the kernel knows only whole bounds, not {least} to {most}.")
    return _entry(info.encode_name, kind, int(least), int(most), nullable)


def _tables() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The kernel's grammar, and its state as far as the schema gives it."""
    event = {
        info.encode_name: info
        for info in msgspec.structs.fields(projection_of(Outcome, EVENT_FIELDS, OPTIONAL))
    }
    frame = {info.encode_name: info for info in msgspec.structs.fields(struct_of(Envelope[Outcome], False))}
    texts = (*EVENT_FIELDS, *ENVELOPE_FIELDS, *CAUSES)
    members = [
        *(_member(event[name]) for name in EVENT_FIELDS),
        *(_member(frame[name]) for name in ENVELOPE_FIELDS),
        *(_entry(cause, kernel.NAMED, 0, 0, False) for cause in CAUSES),
    ]
    grammar = np.zeros(kernel.FIRST_ENTRY + kernel.ENTRY_WORDS * len(texts), np.int64)
    ends: dict[int, int] = {}
    for number, (text, words) in enumerate(zip(texts, members, strict=True)):
        entry = kernel.FIRST_ENTRY + kernel.ENTRY_WORDS * number
        grammar[entry : entry + len(words)] = words
        grammar[entry + kernel.BIT] = 1 << number
        grammar[entry + kernel.VALUE] = number - kernel.FIRST_CAUSE  # a cause's own number, for good
        head = kernel.HEAD_WORDS * _head_of(number) + len(text)
        at = ends.get(head, head)
        grammar[at] = 8 * (entry - at)
        ends[head] = entry + kernel.NEXT
    state = np.zeros(kernel.FIRST_OFFSET + 1, np.int64)
    events: Any = msgspec.inspect.type_info(frame["events"].type)
    state[kernel.MOST_EVENTS] = events.max_length
    for place, infos in ((kernel.EVENT_NEEDS, event), (kernel.ENVELOPE_NEEDS, frame)):
        state[place] = sum(1 << texts.index(name) for name, info in infos.items() if info.required)
    return grammar, state


def _head_of(number: int) -> int:
    if number < len(EVENT_FIELDS):
        return kernel.EVENT_KEYS
    return kernel.ENVELOPE_KEYS if number < kernel.FIRST_CAUSE else kernel.CAUSE_TEXTS


_GRAMMAR, _STATE = _tables()
_HEADERS = tuple(
    np.frombuffer(header_section([(SCHEMA_HEADER, header.encode())]), np.uint8)
    for header in (header_of(Outcome), envelope_header(Outcome))
)
