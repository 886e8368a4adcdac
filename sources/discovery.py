"""Which engines an agent watches: a YAML list in a file that is read again when it changes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from schemas.base import Name, PoolId
from schemas.endpoints import Role
from sources.engines.mapping import UnknownEngine, mapping_of

MAX_FILE_BYTES = 4 * 1024 * 1024


class ConfigError(ValueError):
    """The file can't be used; the message is a sentence that says where and why."""


class EndpointConfig(BaseModel):
    """One engine as the operator describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instance: Name
    engine: Name
    url: Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s]+$")]
    region: Name
    pools: Annotated[list[PoolId], Field(min_length=1, max_length=64)]
    served_model: Name | None = Field(default=None, description="The name the engine itself answers to.")
    roles: Annotated[list[Role], Field(min_length=1)] = ["both"]
    tokenizer: Name | None = None
    draining: bool = False

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ValueError("a URL with a password would be published to the whole fleet; leave it out")
        if parts.query or parts.fragment:
            raise ValueError("the URL is the engine's base address: no query, no fragment")
        return url.rstrip("/")

    @field_validator("engine")
    @classmethod
    def _known(cls, engine: str) -> str:
        try:
            return mapping_of(engine).engine
        except UnknownEngine as error:
            raise ValueError(str(error)) from None

    @field_validator("pools")
    @classmethod
    def _distinct(cls, pools: list[str]) -> list[str]:
        if len(set(pools)) != len(pools):
            raise ValueError("a pool is listed twice")
        return pools


class SourceConfig(BaseModel):
    """The file: ``endpoints`` is the list. An empty list is allowed (and removes all)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: Annotated[list[EndpointConfig], Field(max_length=10_000)]

    @model_validator(mode="after")
    def _unique(self) -> SourceConfig:
        seen: set[str] = set()
        for endpoint in self.endpoints:
            if endpoint.instance in seen:
                raise ValueError(f"the instance {endpoint.instance} is listed twice")
            seen.add(endpoint.instance)
        return self


def parse_config(text: str, where: str) -> SourceConfig:
    """The configuration in this YAML text; raises ConfigError with a sentence that names the field."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = f", line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
        raise ConfigError(f"{where}{place}: not YAML: {getattr(error, 'problem', error)}.") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: expected a mapping with a list `endpoints`.")
    try:
        return SourceConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}.") from None


def read_config(path: Path) -> SourceConfig:
    """The configuration in a file; raises ConfigError."""
    return parse_config(_text_of(path), str(path))


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: over {MAX_FILE_BYTES // 1024} kB; that is no list of endpoints.")
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None


@dataclass(slots=True)
class WatchedFile:
    """A configuration file followed by polling.

    A change counts once two polls in a row saw the same content: a file caught half written must not take
    engines out of the registry. While the file is broken or gone the last good list stays, and ``error``
    says why.
    """

    path: Path
    config: SourceConfig
    error: str | None = None
    _used: str = ""
    _seen: str = ""

    @classmethod
    def load(cls, path: Path) -> WatchedFile:
        """Read it for the first time; raises ConfigError."""
        text = _text_of(path)
        digest = _digest(text)
        return cls(path, parse_config(text, str(path)), None, digest, digest)

    def poll(self) -> bool:
        """Look again; True where ``config`` is a new one now."""
        try:
            text = _text_of(self.path)
        except ConfigError as error:
            self.error, self._seen = str(error), ""
            return False
        digest, before = _digest(text), self._seen
        self._seen = digest
        if digest == self._used:
            self.error = None
            return False
        if digest != before:
            return False
        try:
            config = parse_config(text, str(self.path))
        except ConfigError as error:
            self.error = str(error)
            return False
        self._used, self.error = digest, None
        changed, self.config = config != self.config, config
        return changed


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
