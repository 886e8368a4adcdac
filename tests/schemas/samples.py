"""Random instances of any model of schemas/, from its fields and bounds. Fast: one seed, one sample."""

from __future__ import annotations

import random
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


def sample(cls: type[BaseModel], rng: random.Random) -> Any:
    """A valid instance."""
    return cls.model_validate(
        {
            name: _value(field.annotation, _bounds(field.metadata), rng)
            for name, field in cls.model_fields.items()
        }
    )


def _bounds(metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            found |= _bounds(item.metadata)
        found |= {name: getattr(item, name) for name in BOUNDS if getattr(item, name, None) is not None}
    return found


def _value(annotation: Any, limits: dict[str, Any], rng: random.Random) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(args[0], limits | _bounds(args[1:]), rng)
    if origin in (Union, types.UnionType):
        return _value(rng.choice(args), limits, rng)
    if origin is Literal:
        return rng.choice(args)
    if origin is list:
        size = rng.randint(limits.get("min_length", 0), min(3, limits.get("max_length", 3)))
        return [_value(args[0], {}, rng) for _ in range(size)]
    if origin is dict:
        return {_name(rng): rng.randint(0, 9) for _ in range(rng.randint(0, 2))}
    if annotation is type(None):
        return None
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        low, high = limits.get("ge", -(2**53)), limits.get("le", 2**53)
        return rng.choice([low, high, rng.randint(low, high)])
    if annotation is float:
        low, high = limits.get("ge", limits.get("gt", -1e18)), limits.get("le", 1e18)
        edge = low if "gt" not in limits else high
        return float(rng.choice([edge, high, rng.uniform(low, high), float(round(rng.uniform(low, high)))]))
    if annotation is str:
        return _text(limits, rng)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sample(annotation, rng)
    raise TypeError(annotation)


def _name(rng: random.Random) -> str:
    return "".join(rng.choices("abcXYZ019._-", k=rng.randint(1, 12)))


def _text(limits: dict[str, Any], rng: random.Random) -> str:
    pattern = str(limits.get("pattern", ""))
    if "]+@[" in pattern:
        return f"{_name(rng)}@{_name(rng)}"
    if "0-9a-f" in pattern:
        return "".join(rng.choices("0123456789abcdef", k=limits["min_length"]))
    if "https" in pattern:
        return "http://127.0.0.1:8000"
    if pattern:
        return _name(rng)
    return "".join(rng.choices('aé \n"\\\u2028\U0001f600', k=rng.randint(limits.get("min_length", 0), 12)))
