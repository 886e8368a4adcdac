"""Columns derived from the pydantic models: one definition of each event serves storage too.

A migration writes the same columns down in SQL (that file never changes once released); a test compares both.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
import msgspec
from pydantic import BaseModel

from schemas.readings import Reading

Getter = Callable[[Any], Any]
TIMESTAMP = "DateTime64(3, 'UTC')"
FREE_TEXT = frozenset(
    {
        "decision_id",
        "intent_id",
        "lease_id",
        "rule",
        "reason",
        "url",
        "sha256",
    }
)
"""String fields with too many different values for a dictionary."""
UNPREFIXED = frozenset({"gauges", "counters"})
"""Nested records whose columns carry no prefix: ``requests_running``, not ``gauges_requests_running``."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its ClickHouse type, and how to read it from a struct of the fast path.

    Timestamps are read as integer milliseconds since 1970, the ticks of DateTime64(3).
    """

    name: str
    type: str
    get: Getter


def columns_of(model: type[BaseModel], *, left_out: Mapping[str, str] | None = None) -> list[Column]:
    """The columns of a model's fields, except ``left_out`` (field name to the reason why)."""
    return _columns(model, (), "", left_out or {})


def _columns(
    model: type[BaseModel], path: tuple[str, ...], prefix: str, left_out: Mapping[str, str]
) -> list[Column]:
    columns: list[Column] = []
    for name, field in model.model_fields.items():
        if not path and name in left_out:
            continue
        annotation, nullable, bounds = _strip(field.annotation, list(field.metadata))
        where = (*path, name)
        columns += _field(where, prefix + name, annotation, nullable, bounds)
    return columns


def _field(
    where: tuple[str, ...], name: str, annotation: Any, nullable: bool, bounds: list[Any]
) -> list[Column]:
    get = attrgetter(".".join(where))
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if annotation is Reading:
        dotted = ".".join(where)
        return [
            Column(name, "Nullable(Float64)", attrgetter(f"{dotted}.value")),
            Column(f"{name}_quality", "LowCardinality(String)", attrgetter(f"{dotted}.quality")),
            Column(f"{name}_age_ms", "Nullable(Float64)", attrgetter(f"{dotted}.age_ms")),
        ]
    if is_model and not nullable:
        prefix = "" if where[-1] in UNPREFIXED else f"{name}_"
        return _columns(annotation, where, prefix, {})
    if is_model:
        return [Column(name, "Nullable(String)", _json(get))]
    if get_origin(annotation) in (list, dict):
        inner = _strip(get_args(annotation)[-1], [])[0]
        if get_origin(annotation) is list and (inner is str or get_origin(inner) is Literal):
            return [Column(name, "Array(LowCardinality(String))", get)]
        return [Column(name, "String", _json(get))]
    if annotation is int and name.endswith(("at_ms", "as_of_ms")):
        column = "ts" if name in ("at_ms", "as_of_ms") else name.removesuffix("_ms")
        return [Column(column, f"Nullable({TIMESTAMP})" if nullable else TIMESTAMP, get)]
    return [Column(name, _scalar(name, annotation, nullable, bounds), get)]


def _scalar(name: str, annotation: Any, nullable: bool, bounds: list[Any]) -> str:
    if annotation is str or get_origin(annotation) is Literal:
        if name in FREE_TEXT:
            return "Nullable(String)" if nullable else "String"
        return "LowCardinality(Nullable(String))" if nullable else "LowCardinality(String)"
    if annotation is bool:
        plain = "Bool"
    elif annotation is float:
        plain = "Float64"
    elif annotation is int:
        plain = _unsigned(bounds)
    else:
        raise TypeError(
            f"{name}: there is no column type for {annotation!r}; teach sinks.clickhouse.columns."
        )
    return f"Nullable({plain})" if nullable else plain


def _unsigned(bounds: list[Any]) -> str:
    limits: list[Any] = [item.le for item in bounds if isinstance(item, at.Le)]
    most = min(limits, default=2**63)
    return "UInt16" if most < 2**16 else "UInt32" if most < 2**32 else "UInt64"


def _strip(annotation: Any, metadata: list[Any]) -> tuple[Any, bool, list[Any]]:
    """The plain annotation, whether None is allowed, and all bounds on the way."""
    flat = [part for item in metadata for part in getattr(item, "metadata", [item])]
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *more = get_args(annotation)
        return _strip(base, [*flat, *more])
    if origin in (Union, types.UnionType):
        some = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(some) != 1:
            raise TypeError(f"A column can't hold {annotation!r}.")
        inner, _, bounds = _strip(some[0], flat)
        return inner, True, bounds
    return annotation, False, flat


def _json(get: Getter) -> Getter:
    def read(struct: Any) -> str | None:
        value = get(struct)
        return None if value is None else msgspec.json.encode(value).decode()

    return read
