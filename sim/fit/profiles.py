"""Measured points of published engine profiles, as far as they concern the parameter sets S1 to S4.

Two sources, both Apache-2.0: the silicon samples of NVIDIA's aiconfigurator (time to first token and time per
output token at a fixed concurrency and fixed lengths) and the profiling results in NVIDIA Dynamo's planner
tests (inter-token latency by KV usage and context length; prefill by prompt length).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

SILICON_FILE: Final = "aic_silicon_h100_h200_agg.csv.gz"
DECODE_FILE: Final = "dynamo_h200_llama8bfp8_decode.csv"
PREFILL_FILE: Final = "dynamo_h200_llama8bfp8_prefill.csv"

MAX_DECODERS: Final = 256
"""Decode points beyond the engine's own batch limit measure its queue, not its step."""

Quantity = Literal["tpot", "itl", "prefill"]


class ProfileError(ValueError):
    """A profile that can't be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement in ms.

    ``tpot``: mean time per output token of ``decoders`` clients that each keep one request of
    ``prompt_tokens`` and ``output_tokens`` in flight; ``first_token_ms`` goes with it. ``itl``: a step of
    ``decoders`` sequences with ``resident_tokens`` in all. ``prefill``: one prompt alone.
    """

    quantity: Quantity
    measured_ms: float
    decoders: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    resident_tokens: float = 0.0
    first_token_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _Silicon:
    """Which rows of the silicon samples belong to a parameter set."""

    model: str
    system: str
    backend: str
    tensor_parallel: int


_SILICON: Final = {
    "S2": _Silicon("meta-llama/Llama-3.1-70B", "h100_sxm", "vllm", 4),
    "S3": _Silicon("meta-llama/Llama-3.1-70B", "h200_sxm", "vllm", 2),
    "S4": _Silicon("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", "trtllm", 1),
}


def points_of(name: str, directory: Path) -> tuple[Point, ...]:
    """The measured points of a parameter set, in a fixed order.

    ProfileError for a file that is missing or has no usable row; ValueError for an unknown set.
    """
    if name == "S1":
        return (*_decode_points(directory / DECODE_FILE), *_prefill_points(directory / PREFILL_FILE))
    if name not in _SILICON:
        raise ValueError(f"There are no measured points for {name!r}; there are some for S1, S2, S3 and S4.")
    return _silicon_points(directory / SILICON_FILE, _SILICON[name])


def _silicon_points(path: Path, wanted: _Silicon) -> tuple[Point, ...]:
    points = []
    for line, row in _rows(path):
        try:
            if (
                row["model_path"] != wanted.model
                or row["system"] != wanted.system
                or row["backend"] != wanted.backend
                or float(row["tp_size"]) != wanted.tensor_parallel
            ):
                continue
            points.append(
                Point(
                    "tpot",
                    float(row["silicon_tpot_ms"]),
                    decoders=float(row["batch_size"]),
                    prompt_tokens=int(row["isl"]),
                    output_tokens=int(row["osl"]),
                    first_token_ms=float(row["silicon_ttft_ms"]),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"Line {line} of the profile {path} can't be used: {error!r}.") from None
    points.sort(key=lambda p: (p.prompt_tokens, p.output_tokens, p.decoders))
    return _some(path, points)


def _decode_points(path: Path) -> tuple[Point, ...]:
    points = []
    for line, row in _rows(path):
        try:
            resident = float(row["x_kv_usage"]) * float(row["max_kv_tokens"])
            decoders = resident / float(row["y_context_length"])
            if decoders <= MAX_DECODERS:
                points.append(
                    Point("itl", float(row["z_itl"]), decoders=max(1.0, decoders), resident_tokens=resident)
                )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ProfileError(f"Line {line} of the profile {path} can't be used: {error!r}.") from None
    return _some(path, points)


def _prefill_points(path: Path) -> tuple[Point, ...]:
    points = []
    for line, row in _rows(path):
        try:
            tokens = int(float(row["prefill_isl"]))
            points.append(Point("prefill", float(row["prefill_ttft"]), prompt_tokens=tokens))
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"Line {line} of the profile {path} can't be used: {error!r}.") from None
    return _some(path, points)


def _some(path: Path, points: list[Point]) -> tuple[Point, ...]:
    if not points:
        raise ProfileError(f"The profile {path} has no usable row.")
    return tuple(points)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their line numbers, gzip or plain."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open() as text:
            reader = csv.DictReader(text)
            for row in reader:
                yield reader.line_num, row
    except FileNotFoundError:
        raise ProfileError(f"There is no profile {path}; give the folder that holds the profiles.") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ProfileError(f"The profile {path} can't be read: {error}.") from None
