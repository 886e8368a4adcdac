"""The fast path: msgspec structs derived from the pydantic models, so each event has one definition.

Field names, types, defaults and bounds come from the models; a struct decodes several times faster than
pydantic validates and refuses the same payloads (a property test compares the two).
"""

from __future__ import annotations

import re
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def _meta(metadata: list[Any]) -> list[msgspec.Meta]:
    bounds: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            for meta in _meta(item.metadata):
                bounds |= {name: value for name in _BOUNDS if (value := getattr(meta, name)) is not None}
        elif isinstance(item, at.Ge):
            bounds["ge"] = item.ge
        elif isinstance(item, at.Le):
            bounds["le"] = item.le
        elif isinstance(item, at.Gt):
            bounds["gt"] = item.gt
        elif isinstance(item, at.Lt):
            bounds["lt"] = item.lt
        elif isinstance(item, at.MinLen):
            bounds["min_length"] = item.min_length
        elif isinstance(item, at.MaxLen):
            bounds["max_length"] = item.max_length
        elif (pattern := getattr(item, "pattern", None)) is not None:
            bounds["pattern"] = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    return [msgspec.Meta(**bounds)] if bounds else []


_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


def _convert(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *metadata = get_args(annotation)
        inner, meta = _convert(base), _meta(metadata)
        return Annotated[(inner, *meta)] if meta else inner
    if origin in (Union, types.UnionType):
        return Union[tuple(_convert(arg) for arg in get_args(annotation))]  # noqa: UP007
    if origin is Literal or annotation in (str, int, float, bool, type(None), Any):
        return annotation
    if origin in (list, tuple, dict):
        args = tuple(_convert(arg) for arg in get_args(annotation))
        return origin[args]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return struct_of(annotation)
    raise TypeError(
        f"The fast path has no rule for {annotation!r}; teach schemas.fastpath or change the model."
    )


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return struct_of(type(default))()
    return default


@cache
def struct_of(model: type[BaseModel]) -> type[msgspec.Struct]:
    """The struct of this model: same fields, bounds and defaults; unknown fields are ignored."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, field in model.model_fields.items():
        annotation = _convert(field.annotation)
        if meta := _meta(field.metadata):
            annotation = Annotated[(annotation, *meta)]
        if field.default is PydanticUndefined and field.default_factory is None:
            fields.append((name, annotation))
        elif isinstance(default := _default(field), list):
            value = default
            fields.append(
                (name, annotation, msgspec.field(default_factory=list) if not value else _copy_of(value))
            )
        else:
            fields.append((name, annotation, default))
    name = re.sub(r"\W+", "_", model.__name__).strip("_")
    return msgspec.defstruct(
        name, fields, kw_only=True, frozen=True, gc=False, omit_defaults=True, module=__name__
    )


def _copy_of(value: list[Any]) -> Any:
    return msgspec.field(default_factory=lambda: list(value))


@cache
def decoder_of(model: type[BaseModel]) -> msgspec.json.Decoder[Any]:
    """A reusable JSON decoder of this model's struct; raises msgspec.ValidationError or DecodeError."""
    return msgspec.json.Decoder(struct_of(model))


def encode(struct: msgspec.Struct) -> bytes:
    """The struct as JSON; fields at their defaults are left out."""
    return _ENCODER.encode(struct)


_ENCODER = msgspec.json.Encoder()
