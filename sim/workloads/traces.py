"""Readers for the two public trace formats: Azure LLM inference CSV and Mooncake JSONL, gzip or plain.

Azure: https://github.com/Azure/AzurePublicDataset (TIMESTAMP, ContextTokens, GeneratedTokens).
Mooncake: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces (timestamp in ms, input_length,
output_length, hash_ids of 512-token prefix blocks).

The format is taken from the content, never from the file's name. A row that can't be used is collected with
its line number and the reason; nothing is dropped in silence.
"""

from __future__ import annotations

import gzip
import io
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sim.workloads.azure import AZURE_COLUMNS, AzureColumns

BLOCK_TOKENS = 512  # tokens of one prefix block, in the Mooncake traces and in everything derived here
MAX_TOKENS = 10_000_000  # a longer prompt or answer is an impossible value, not a long request

_QUANTUM_MS = 3_000.0  # the tick of the Mooncake conversation trace
_QUANTUM_SLACK_MS = 5.0  # its ticks are a few ms off (2,999; 3,536,999)
_GZIP_MAGIC = b"\x1f\x8b"

TraceFormat = Literal["azure-csv", "mooncake-jsonl"]


class TraceError(ValueError):
    """A trace that can't be used; the message is one sentence that says which file and why."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a workload.

    `at_ms` is the arrival after the first request; `prefix_blocks` are the ids of the prompt's 512-token
    blocks from its start (equal ids: equal text and equal text before it); empty where nothing is known.
    """

    at_ms: float
    input_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """A row that could not be used: its line number in the file (from 1) and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What reading a trace found: usable rows, broken rows, and the jitter that was added (0: none)."""

    path: str
    format: TraceFormat
    rows: int
    broken: tuple[BrokenRow, ...]
    jitter_ms: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in order of arrival, with the report of its reading."""

    requests: tuple[TraceRequest, ...]
    report: TraceReport


class _MooncakeRow(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]


_MOONCAKE_DECODER = msgspec.json.Decoder(_MooncakeRow)


def load_trace(
    path: str | Path, *, skip_broken: bool = False, seed: int = 0, jitter_ms: float | None = None
) -> Trace:
    """Read a whole trace, sorted by arrival, with times relative to its first request.

    `jitter_ms`: width of the uniform jitter added to every arrival (seeded by `seed`); None adds 3,000 ms
    exactly where the time stamps are quantised to 3 s ticks, as in the Mooncake conversation trace; 0 adds
    none. Raises TraceError for a file that is missing, unreadable, empty, of an unknown format or without any
    usable row; and, unless `skip_broken`, for a file with broken rows.
    """
    if jitter_ms is not None and not 0 <= jitter_ms < float("inf"):
        raise ValueError(f"The trace jitter must be a finite number of ms >= 0, not {jitter_ms}.")
    path = Path(path)
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP_MAGIC else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace") as text:
                found, requests, broken = _read(path, text)
    except FileNotFoundError:
        raise TraceError(f"There is no trace file {path}; give the path of a file that exists.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"The trace {path} is a damaged gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise TraceError(f"The trace {path} can't be read: {error.strerror or error}.") from error

    if broken and not skip_broken:
        rows = "1 broken row" if len(broken) == 1 else f"{len(broken)} broken rows"
        raise TraceError(
            f"The trace {path} has {rows}; the first is line {broken[0].line}: {broken[0].reason}; "
            "repair the file or ask to skip broken rows."
        )
    if not requests:
        tail = (
            f": all {len(broken)} are broken, first line {broken[0].line}: {broken[0].reason}"
            if broken
            else ""
        )
        raise TraceError(f"The trace {path} has no usable row{tail}.")
    width_ms = (_QUANTUM_MS if _is_quantised(requests) else 0.0) if jitter_ms is None else jitter_ms
    ordered = _ordered(requests, width_ms, seed)
    report = TraceReport(str(path), found, len(ordered), tuple(broken), width_ms)
    return Trace(ordered, report)


def _read(path: Path, text: io.TextIOBase) -> tuple[TraceFormat, list[TraceRequest], list[BrokenRow]]:
    """Detect the format on the first line that is not blank, then read every row."""
    numbered = ((number, stripped) for number, line in enumerate(text, 1) if (stripped := line.strip()))
    number, first = next(numbered, (0, ""))
    if not first:
        raise TraceError(f"The trace {path} is empty.")
    requests: list[TraceRequest] = []
    broken: list[BrokenRow] = []

    def collect(rows: Iterator[tuple[int, str]], columns: AzureColumns | None) -> None:
        for row_number, row in rows:
            try:
                requests.append(_mooncake_request(row) if columns is None else _azure_request(columns, row))
            except ValueError as error:
                broken.append(BrokenRow(row_number, str(error)))

    if first.startswith("{"):
        collect(iter([(number, first)]), None)
        collect(numbered, None)
        return "mooncake-jsonl", requests, broken
    columns = AzureColumns.from_header(first)
    if columns is None:
        raise TraceError(
            f"The trace {path} has an unknown format: its first line is neither the Azure header "
            f"{','.join(AZURE_COLUMNS)} nor a Mooncake JSON object."
        )
    collect(numbered, columns)
    return "azure-csv", requests, broken


def _azure_request(columns: AzureColumns, line: str) -> TraceRequest:
    at_ms, input_tokens, output_tokens = columns.parse(line)
    for name, value in ((AZURE_COLUMNS[1], input_tokens), (AZURE_COLUMNS[2], output_tokens)):
        if not 1 <= value <= MAX_TOKENS:
            raise ValueError(f"{name} is {value}, outside 1 to {MAX_TOKENS}")
    return TraceRequest(at_ms, input_tokens, output_tokens)


def _mooncake_request(line: str) -> TraceRequest:
    try:
        row = _MOONCAKE_DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not a JSON object ({error})") from None
    most = -(-row.input_length // BLOCK_TOKENS)
    if len(row.hash_ids) > most:
        raise ValueError(
            f"{len(row.hash_ids)} hash_ids where {row.input_length} input tokens fill at most {most} blocks"
        )
    return TraceRequest(row.timestamp, row.input_length, row.output_length, tuple(row.hash_ids))


def _is_quantised(requests: list[TraceRequest]) -> bool:
    """True where arrivals sit on 3 s ticks and share them: then the order within a tick is an artefact."""
    on_tick = all(
        min(rest := request.at_ms % _QUANTUM_MS, _QUANTUM_MS - rest) <= _QUANTUM_SLACK_MS
        for request in requests
    )
    return on_tick and len({request.at_ms for request in requests}) < len(requests)


def _ordered(requests: list[TraceRequest], jitter_ms: float, seed: int) -> tuple[TraceRequest, ...]:
    rng = random.Random(seed)
    offsets_ms = [rng.uniform(0.0, jitter_ms) if jitter_ms else 0.0 for _ in requests]
    timed = sorted(
        (
            (request.at_ms + offset_ms, request)
            for request, offset_ms in zip(requests, offsets_ms, strict=True)
        ),
        key=lambda pair: pair[0],
    )
    start_ms = timed[0][0]
    return tuple(replace(request, at_ms=at_ms - start_ms) for at_ms, request in timed)
