"""The fast path: msgspec structs derived from the pydantic models, so each event has one definition.

Field names, types, defaults and bounds come from the models; a property test holds that a struct refuses
the same payloads as pydantic. Patterns of names cost four fifths of an outcome's decoding, so raw events are
read without them (``patterns=False``) and only the names that keys are made of are checked
(``schemas.codec.decode_events``): 1,050,000 events a CPU-second instead of 230,000.
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


def _meta(metadata: list[Any], patterns: bool) -> list[msgspec.Meta]:
    bounds: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            for meta in _meta(item.metadata, patterns):
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
        elif patterns and (pattern := getattr(item, "pattern", None)) is not None:
            bounds["pattern"] = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    return [msgspec.Meta(**bounds)] if bounds else []


_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


def _convert(annotation: Any, patterns: bool) -> Any:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *metadata = get_args(annotation)
        inner, meta = _convert(base, patterns), _meta(metadata, patterns)
        return Annotated[(inner, *meta)] if meta else inner
    if origin in (Union, types.UnionType):
        return Union[tuple(_convert(arg, patterns) for arg in get_args(annotation))]  # noqa: UP007
    if origin is Literal or annotation in (str, int, float, bool, type(None), Any):
        return annotation
    if origin in (list, tuple, dict):
        args = tuple(_convert(arg, patterns) for arg in get_args(annotation))
        return origin[args]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return struct_of(annotation, patterns)
    raise TypeError(
        f"The fast path has no rule for {annotation!r}; teach schemas.fastpath or change the model."
    )


def _default(field: FieldInfo, patterns: bool) -> Any:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return struct_of(type(default), patterns)()
    return default


@cache
def struct_of(model: type[BaseModel], patterns: bool = True) -> type[msgspec.Struct]:
    """The struct of this model: same fields, bounds and defaults; unknown fields are ignored.

    Without ``patterns``, strings are checked for their length only.
    """
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, field in model.model_fields.items():
        annotation = _convert(field.annotation, patterns)
        if meta := _meta(field.metadata, patterns):
            annotation = Annotated[(annotation, *meta)]
        if field.default is PydanticUndefined and field.default_factory is None:
            fields.append((name, annotation))
        elif isinstance(default := _default(field, patterns), list):
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


@cache
def projection_of(
    model: type[BaseModel], fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> type[msgspec.Struct]:
    """A struct of only these fields, with the model's types, bounds and defaults, without patterns of names.

    A reader that needs a few fields of many decodes three times as fast; it says nothing of the others. Of
    the ``optional`` ones it says nothing where they are missing, though the model requires them: None.
    """
    infos = {field.encode_name: field for field in msgspec.structs.fields(struct_of(model, False))}
    wanted: list[Any] = []
    for name in fields:
        info = infos[name]
        if name in optional:
            wanted.append((name, info.type | None, None))
        elif info.required:
            wanted.append((name, info.type))
        elif info.default is not msgspec.NODEFAULT:
            wanted.append((name, info.type, info.default))
        else:
            wanted.append((name, info.type, msgspec.field(default_factory=info.default_factory)))
    return msgspec.defstruct(
        f"{model.__name__}Projection", wanted, kw_only=True, frozen=True, gc=False, module=__name__
    )


def _copy_of(value: list[Any]) -> Any:
    return msgspec.field(default_factory=lambda: list(value))


@cache
def decoder_of(model: type[BaseModel], patterns: bool = True) -> msgspec.json.Decoder[Any]:
    """A reusable JSON decoder of this model's struct; raises msgspec.ValidationError or DecodeError."""
    return msgspec.json.Decoder(struct_of(model, patterns))


def encode(struct: msgspec.Struct) -> bytes:
    """The struct as JSON; fields at their defaults are left out."""
    return _ENCODER.encode(struct)


_ENCODER = msgspec.json.Encoder()
