"""Fetched records as the broker's batches, without an object of aiokafka's for each.

aiokafka wraps every record in a ``ConsumerRecord``, which costs two thirds of a fetch: 2.2 us a record
against 0.7 us this way, and 1.0 us with confluent-kafka, measured side by side. It needs the fetcher's
internals, so it rests on the exact version that Faust pins anyway; ``tests/streams/test_record_batches.py``
holds it to ``getmany``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition, conn
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c

from streams.record_scan import CRC_AT, CRC_FROM, LENGTH_AT, Scan, scan_batch

READER_BYTES = 16 * 1024 * 1024


class KeptRecords(fetcher.MemoryRecords):  # type: ignore[misc]
    """A fetch's batches, which remembers the bytes of the last one that it gave."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._data = memoryview(data)
        self._start = self._end = 0

    def next_batch(self) -> Any:
        """The next batch, or None."""
        batch = super().next_batch()
        if batch is not None:
            self._start, at = self._end, self._end + LENGTH_AT
            self._end = at + 4 + int.from_bytes(self._data[at : at + 4], "big", signed=True)
        return batch

    @property
    def raw(self) -> memoryview:
        """The bytes of the batch that ``next_batch`` gave last."""
        return self._data[self._start : self._end]


# An answer is megabytes; at aiokafka's 64 kB the socket would be stopped and started for each piece of it.
conn.READER_LIMIT = READER_BYTES

# aiokafka's compiled class hides the bytes that it reads. The fetcher looks its name up at each response, so
# this reaches every consumer of the process; it is as good as the version that is pinned (aiokafka==0.14.0).
fetcher.MemoryRecords = KeptRecords


class PlainRecord(NamedTuple):
    """A record of a batch whose headers aiokafka can't read: none of the batch's are, so it has no schema."""

    offset: int
    timestamp: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class RecordBatch:
    """Records of one partition in order: a broker's batch from offset ``wanted`` on.

    ``raw`` are its bytes where they can be read as they are (magic 2, neither compressed nor control), else
    None. Records become objects only when ``records`` is asked for. Offsets below ``next_offset`` are done
    with the batch, even where compaction left no record of them. Batches older than magic 2 do not tell their
    ``base_offset``; it is ``wanted`` then.
    """

    __slots__ = ("_batch", "_records", "_scan", "base_offset", "next_offset", "raw", "tp", "wanted")

    def __init__(self, tp: TopicPartition, batch: Any, wanted: int, raw: bytes | memoryview | None) -> None:
        self.tp = tp
        self.wanted = wanted
        self.next_offset: int = batch.next_offset
        modern = isinstance(batch, DefaultRecordBatch)
        self.base_offset: int = batch.base_offset if modern else wanted
        plain = modern and batch.compression_type == 0 and not batch.is_control_batch
        self.raw = memoryview(raw) if plain and raw is not None else None
        self._batch = batch
        self._records: list[Any] | None = None
        self._scan: Scan | Literal[False] | None = False

    @property
    def scan(self) -> Scan | None:
        """Where the records lie in ``raw``; None where that is None or not what it should be."""
        if self._scan is False:
            self._scan = None if self.raw is None else scan_batch(self.raw, self.wanted)
        return self._scan

    @property
    def records(self) -> list[Any]:
        """aiokafka's records. Raises CorruptRecordException."""
        if self._records is None:
            wanted = self.wanted
            try:
                self._records = [record for record in self._batch if record.offset >= wanted]
            except UnicodeDecodeError:  # a header's name that is no text ends aiokafka's reading
                if (scan := self.scan) is None:
                    raise CorruptRecordException(f"A header's name is no UTF-8 - {self.tp}") from None
                self._records = [PlainRecord(*entry) for entry in scan.values()]
        return self._records

    def __len__(self) -> int:
        scan = self.scan
        return len(self.records) if scan is None else len(scan)

    @property
    def first_ms(self) -> int:
        """The earliest of the records' time stamps, in epoch milliseconds."""
        scan = self.scan
        return min(record.timestamp for record in self.records) if scan is None else scan.first_ms

    @property
    def last_ms(self) -> int:
        """The latest of the records' time stamps, in epoch milliseconds."""
        scan = self.scan
        return max(record.timestamp for record in self.records) if scan is None else scan.last_ms


async def fetch_batches(consumer: AIOKafkaConsumer, timeout_s: float) -> list[RecordBatch]:
    """What has been fetched by now, or within ``timeout_s``; moves the consumer's positions past it.

    Raises what ``getmany`` raises: KafkaError for the group's and the fetcher's errors.
    """
    consumer._coordinator.check_errors()
    source = consumer._fetcher
    with consumer._subscription.fetch_context():
        if source._subscriptions.reassignment_in_progress:
            await source._subscriptions.wait_for_assignment()
        if not source._records:
            waiter = source._create_fetch_waiter()
            done, _ = await asyncio.wait([waiter], timeout=timeout_s)
            if not done:
                waiter.cancel()
                return []
    found: list[RecordBatch] = []
    for tp in list(source._records):
        result = source._records.pop(tp)
        source._notify(source._wait_consume_future)
        if type(result) is not fetcher.FetchResult:
            if found:
                source._records[tp] = result  # for the next call
                break
            result.check_raise()
        elif result.check_assignment(tp) and result.has_more():
            found += _unpack(tp, result)
    return found


def _is_whole(batch: Any, raw: memoryview | None) -> bool:
    """Whether the batch's checksum is right; by the processor's own instruction: aiokafka's code takes 14
    times as long."""
    if raw is None or not isinstance(batch, DefaultRecordBatch):
        return bool(batch.validate_crc())
    return crc32c(raw[CRC_FROM:]) == int.from_bytes(raw[CRC_AT:CRC_FROM], "big")


def _unpack(tp: TopicPartition, result: Any) -> list[RecordBatch]:
    partition = result._partition_records
    buffer, wanted = partition._records, partition.next_fetch_offset
    found: list[RecordBatch] = []
    while buffer.has_next():
        batch = buffer.next_batch()
        raw = getattr(buffer, "raw", None)
        if not _is_whole(batch, raw):
            raise CorruptRecordException(f"Invalid CRC - {tp}")
        if not batch.is_control_batch:
            taken = RecordBatch(tp, batch, wanted, raw)
            if len(taken):
                found.append(taken)
        wanted = partition.next_fetch_offset = batch.next_offset
    result._update_position()
    return found
