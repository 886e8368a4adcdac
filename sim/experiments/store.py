"""Results on disk: ``cells.parquet``, ``requests.parquet`` and ``run.json``. Equal runs give equal bytes."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sim.des.metrics import CAUSES
from sim.experiments.cell import REQUEST_COLUMNS, CellResult
from sim.experiments.spec import Experiment
from sim.oracles.hindsight import hindsight_rows

CELLS, REQUESTS, RUN = "cells.parquet", "requests.parquet", "run.json"
_KEYS = ("arm", "load", "seed", "service_class")


def versions() -> dict[str, str]:
    """What the figures depend on."""
    found = {"python": platform.python_version()}
    for package in ("tokenfleet", "numpy", "pyarrow", "highspy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def write(
    folder: Path, experiment: Experiment, notes: Sequence[str], results: Iterable[CellResult]
) -> list[dict[str, Any]]:
    """Write everything; returns the rows of ``cells.parquet``. OSError where the folder can't be written."""
    folder.mkdir(parents=True, exist_ok=True)
    recorded = record(experiment, notes)
    metadata = {b"tokenfleet": json.dumps(recorded, sort_keys=True).encode()}
    rows: list[dict[str, Any]] = []
    digests: dict[str, str] = {}
    schema = _request_schema().with_metadata(metadata)
    with pq.ParquetWriter(folder / REQUESTS, schema, compression="zstd") as writer:
        for result in results:
            rows += result.rows
            digests[f"{result.arm} | {result.load} | {result.seed}"] = result.digest
            if result.requests:
                writer.write_table(_request_table(result, schema))
    rows += hindsight_rows(experiment, rows)
    cells = cell_table(rows).replace_schema_metadata(metadata)
    pq.write_table(cells, folder / CELLS, compression="zstd")
    recorded["digests"] = digests
    (folder / RUN).write_text(json.dumps(recorded, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return rows


def record(experiment: Experiment, notes: Sequence[str]) -> dict[str, Any]:
    """The experiment, its seeds, its notes and the versions."""
    return {
        "experiment": experiment.model_dump(mode="json"),
        "seeds": experiment.seeds,
        "notes": list(notes),
        "versions": versions(),
    }


def cell_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows with the union of their columns; a figure that a row lacks is null."""
    names = list(_KEYS) + sorted({name for row in rows for name in row} - set(_KEYS))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "seed":
            columns[name] = pa.array(values, pa.int64())
        elif name in _KEYS:
            columns[name] = pa.array(values, pa.string())
        else:
            columns[name] = pa.array([None if v is None else float(v) for v in values], pa.float64())
    return pa.table(columns)


def _request_schema() -> pa.Schema:
    dictionary = pa.dictionary(pa.int32(), pa.string())
    fields = [("arm", dictionary), ("load", dictionary), ("seed", pa.int64())]
    for name in REQUEST_COLUMNS:
        if name in ("service_class", "cause"):
            fields.append((name, dictionary))
        elif name in ("offered_ms", "ended_ms", "ttft_ms", "tpot_ms"):
            fields.append((name, pa.float64()))
        else:
            fields.append((name, pa.int64()))
    return pa.schema(fields)


def _request_table(result: CellResult, schema: pa.Schema) -> pa.Table:
    count = len(result.requests["offered_ms"])
    columns: list[pa.Array] = []
    for field in schema:
        if field.name in ("arm", "load"):
            name = result.arm if field.name == "arm" else result.load
            columns.append(_coded(np.zeros(count, np.int64), [name]))
        elif field.name == "seed":
            columns.append(pa.array(np.full(count, result.seed), pa.int64()))
        elif field.name == "service_class":
            columns.append(_coded(result.requests[field.name], list(result.classes)))
        elif field.name == "cause":
            columns.append(_coded(result.requests[field.name], list(CAUSES)))
        else:
            columns.append(pa.array(result.requests[field.name], field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _coded(codes: Any, names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string()))


def read(folder: Path) -> tuple[Experiment, dict[str, Any], list[dict[str, Any]]]:
    """The experiment, the record and the rows of a run that was written before."""
    recorded = json.loads((folder / RUN).read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = pq.read_table(folder / CELLS).to_pylist()
    return Experiment.model_validate(recorded["experiment"]), recorded, rows


def read_requests(folder: Path) -> pa.Table:
    """The requests that were kept."""
    return pq.read_table(folder / REQUESTS)
