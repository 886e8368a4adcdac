"""A policy file: YAML with the fields of schemas.policy.PolicyRow; mistakes are told by field."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from infra.errors import StackError
from minds.policy import problems_of
from schemas.policy import PolicyRow
from transport.clock import now_ms

VALID_FOR_MS = 7 * 86_400_000.0
"""A policy holds until it is replaced; readers use it whatever its age."""
_STAMPS = ("as_of_ms", "valid_for_ms", "epoch", "version")


class PolicyFileError(StackError):
    """A policy file that can't be used; the message is one sentence that names the field."""


def load_policy(path: str | Path) -> PolicyRow:
    """The checked policy of a YAML file, stamped with this moment. Raises PolicyFileError.

    A field that no policy has is refused (it is most likely misspelt), and so is what contradicts itself.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"The policy {path} can't be read: {error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise PolicyFileError(f"The policy {path} is not valid YAML{where}.") from None
    if not isinstance(document, dict):
        raise PolicyFileError(f"The policy {path} must be a mapping of fields such as classes and caps.")
    for stamp in _STAMPS:
        if stamp in document:
            raise PolicyFileError(f"The policy {path} must not set {stamp}; it is stamped when applied.")
    if (unknown := _unknown_field(PolicyRow, document, "")) is not None:
        raise PolicyFileError(f"The policy {path} has a field that is not known: {unknown}.")
    at_ms = now_ms()
    stamps = {"as_of_ms": at_ms, "valid_for_ms": VALID_FOR_MS, "epoch": at_ms, "version": 0}
    try:
        policy = PolicyRow.model_validate(document | stamps)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = _path(first["loc"])
        raise PolicyFileError(
            f"The policy {path} is not usable: {where}: {first['msg']} (it says {first['input']!r})."
        ) from None
    if problems := problems_of(policy):
        raise PolicyFileError(f"The policy {path} contradicts itself: {problems[0]}")
    return policy


def _path(parts: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".") or "the file"


def _unknown_field(model: type[BaseModel], value: Any, where: str) -> str | None:
    """The first field of a document that its model doesn't have, by path."""
    if not isinstance(value, dict):
        return None
    for name, item in value.items():
        path = f"{where}.{name}" if where else str(name)
        field = model.model_fields.get(str(name))
        if field is None:
            return path
        inner = _model_in(field.annotation)
        if inner is None:
            continue
        items = enumerate(item) if isinstance(item, list) else [(None, item)]
        for index, part in items:
            found = _unknown_field(inner, part, path if index is None else f"{path}[{index}]")
            if found is not None:
                return found
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        if (found := _model_in(argument)) is not None:
            return found
    return None
