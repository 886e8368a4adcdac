"""A mixture of classes with files of lengths: arrivals are synthesised, lengths are drawn from rows.

A lengths file is an Azure CSV, a Mooncake JSONL, or a CSV with the columns ``num_prefill_tokens`` and
``num_decode_tokens`` (Vidur's processed traces, which have no time stamps). Pairs of prompt and answer are
drawn together, with replacement. Without a file the built-in tables of the published shapes are used.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.workloads.classes import ClassProfile
from sim.workloads.lengths import LENGTHS
from sim.workloads.plan import IntentSpec
from sim.workloads.traces import MAX_TOKENS, TraceError, load_trace

LENGTH_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
Pairs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RateStep:
    """From ``at_ms`` on the rate is ``factor`` times the stated one; shares None: as before."""

    at_ms: float
    factor: float = 1.0
    shares: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Lengths:
    """``pairs`` of (prompt, answer) tokens, shape (n, 2), and how many rows of the file were broken."""

    pairs: Pairs
    broken: int = 0


def load_lengths(path: Path, *, skip_broken: bool = False) -> Lengths:
    """All usable rows of a file. TraceError for one that can't be used."""
    columns = _length_columns(path)
    if columns is None:
        trace = load_trace(path, skip_broken=skip_broken, jitter_ms=0.0)
        rows = [(request.input_tokens, request.output_tokens) for request in trace.requests]
        return Lengths(np.array(rows, dtype=np.int64), len(trace.report.broken))
    pairs: list[tuple[int, int]] = []
    broken: list[int] = []
    for number, row in enumerate(_rows(path), 1):
        if number == 1 or not row:
            continue
        try:
            prompt, answer = (int(float(row[column])) for column in columns)
        except (ValueError, IndexError, OverflowError):
            broken.append(number)
            continue
        if 1 <= prompt <= MAX_TOKENS and 1 <= answer <= MAX_TOKENS:
            pairs.append((prompt, answer))
        else:
            broken.append(number)
    if broken and not skip_broken:
        raise TraceError(
            f"The lengths file {path} has {len(broken)} broken rows; the first is line {broken[0]}; repair "
            "the file or ask to skip broken rows."
        )
    if not pairs:
        raise TraceError(f"The lengths file {path} has no usable row.")
    return Lengths(np.array(pairs, dtype=np.int64), len(broken))


def _rows(path: Path) -> list[list[str]]:
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig", "replace")
    except (OSError, EOFError) as error:
        raise TraceError(f"The lengths file {path} is a damaged gzip file ({error}).") from error
    return list(csv.reader(io.StringIO(text)))


def _length_columns(path: Path) -> tuple[int, int] | None:
    """Where the two columns are, or None for another format. TraceError for a missing file."""
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            head = stream.readline(4_096).decode("utf-8-sig", "replace")
    except FileNotFoundError:
        raise TraceError(f"There is no trace file {path}; give the path of a file that exists.") from None
    except OSError as error:
        raise TraceError(f"The trace {path} can't be read: {error}.") from error
    names = [name.strip() for name in head.split(",")]
    if any(name not in names for name in LENGTH_COLUMNS):
        return None
    return names.index(LENGTH_COLUMNS[0]), names.index(LENGTH_COLUMNS[1])


def plan_from_mixture(
    classes: Sequence[ClassProfile],
    lengths: Mapping[str, Pairs],
    *,
    rate_rps: float,
    duration_ms: float,
    seed: int,
    modulation: float = 0.5,
    period_ms: float = 60_000.0,
    steps: Sequence[RateStep] = (),
    entry_shares: Mapping[str, float] | None = None,
    tenant_shares: Mapping[str, float] | None = None,
) -> tuple[IntentSpec, ...]:
    """Poisson arrivals of every class at its share of ``rate_rps``, modulated by (1 +- ``modulation``).

    The first, third, ... class is high while the others are low, and turn about: seeds have the same peaks.
    ``steps`` change rate or mix at given times. ``lengths`` has an (n, 2) array for a class, or nothing: then
    the built-in table. ValueError for impossible arguments.
    """
    if not 0 < rate_rps < float("inf") or not 0 < duration_ms < float("inf"):
        raise ValueError(
            f"A mixture needs a rate and a duration above 0, not {rate_rps}/s and {duration_ms} ms."
        )
    if not 0 <= modulation <= 1 or not period_ms > 0:
        raise ValueError(f"The modulation must lie in 0..1 and its period above 0 ms, not {modulation}.")
    made: list[IntentSpec] = []
    for index, profile in enumerate(classes):
        rng = np.random.default_rng([seed, 0x6D, index])
        times = _arrivals(rng, profile, classes, rate_rps, duration_ms, modulation, period_ms, steps)
        pairs = _draw(rng, profile.name, lengths, len(times))
        entries = _names(rng, entry_shares or {"a": 1.0}, len(times))
        tenants = _names(rng, tenant_shares or {"tenant-a": 1.0}, len(times))
        made.extend(
            IntentSpec(
                intent_id=f"seed{seed}-{profile.name}-{number:06d}",
                at_ms=float(at_ms),
                service_class=profile.name,
                tenant=tenants[number],
                entry_region=entries[number],
                residency=None,
                input_tokens=int(prompt),
                output_tokens=int(answer),
                prefix_blocks=(),
                deadline_ms=profile.deadline_ms,
                ttft_slo_ms=profile.ttft_slo_ms,
                tpot_slo_ms=profile.tpot_slo_ms,
                client_timeout_ms=profile.client_timeout_ms,
            )
            for number, (at_ms, (prompt, answer)) in enumerate(zip(times, pairs, strict=True))
        )
    made.sort(key=lambda spec: (spec.at_ms, spec.intent_id))
    return tuple(made)


def _arrivals(
    rng: np.random.Generator,
    profile: ClassProfile,
    classes: Sequence[ClassProfile],
    rate_rps: float,
    duration_ms: float,
    modulation: float,
    period_ms: float,
    steps: Sequence[RateStep],
) -> NDArray[np.float64]:
    """Times of a Poisson process whose rate is constant between edges."""
    edges = {0.0, duration_ms}
    edges |= set(np.arange(0.0, duration_ms, period_ms).tolist())
    edges |= {step.at_ms for step in steps if 0 < step.at_ms < duration_ms}
    ordered = sorted(edges)
    times: list[NDArray[np.float64]] = []
    for begin, end in pairwise(ordered):
        high = (int(begin // period_ms) + classes.index(profile)) % 2 == 0
        factor, shares = 1.0, {item.name: item.share for item in classes}
        for step in sorted(steps, key=lambda item: item.at_ms):
            if step.at_ms <= begin:
                factor = step.factor
                shares = dict(step.shares) if step.shares is not None else shares
        share = shares.get(profile.name, 0.0) / sum(shares.values())
        level = rate_rps * factor * share * (1.0 + modulation if high else 1.0 - modulation)
        count = int(rng.poisson(level * (end - begin) / 1_000.0))
        times.append(np.sort(rng.uniform(begin, end, count)))
    return np.concatenate(times)


def _draw(rng: np.random.Generator, name: str, lengths: Mapping[str, Pairs], count: int) -> Pairs:
    rows = lengths.get(name)
    if rows is not None:
        drawn: Pairs = rows[rng.integers(len(rows), size=count)]
        return drawn
    if name not in LENGTHS:
        raise ValueError(f"There are no built-in lengths for class {name!r}; there are {sorted(LENGTHS)}.")
    table = LENGTHS[name]
    return np.stack([table.draw_inputs(rng, count), table.draw_outputs(rng, count)], axis=1)


def _names(rng: np.random.Generator, shares: Mapping[str, float], count: int) -> list[str]:
    names = list(shares)
    weights = np.array([shares[name] for name in names], dtype=float)
    return [names[i] for i in rng.choice(len(names), size=count, p=weights / weights.sum())]
