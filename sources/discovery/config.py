"""What an operator says of the engines to watch: the discovery file, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from schemas.base import Name, PoolId
from schemas.endpoints import Role
from sources.engines.mapping import UnknownEngine, mapping_of
from sources.gpu.config import GpusConfig
from sources.kv_events.config import KvEventsConfig
from sources.links.config import LinkConfig

MAX_FILE_BYTES = 4 * 1024 * 1024
Url = Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s]+$")]
Port = Annotated[int, Field(ge=1, le=65_535)]


class ConfigError(ValueError):
    """The file can't be used; the message is a sentence that says where and why."""


class EngineConfig(BaseModel):
    """What is said of an engine, or of all that a name or a service stands for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Name
    region: Name
    pools: Annotated[list[PoolId], Field(min_length=1, max_length=64)]
    served_model: Name | None = Field(default=None, description="The name the engine itself answers to.")
    metrics_model: Name | None = Field(
        default=None, description="The model's name in the engine's metrics, where it is another."
    )
    roles: Annotated[list[Role], Field(min_length=1)] | None = Field(
        default=None, description="Default: as the engine's metrics say, else both."
    )
    tokenizer: Name | None = None
    host: Name | None = Field(
        default=None, description="The host that it runs on, as the agent that looks at its GPUs calls it."
    )
    kv_events: KvEventsConfig | None = Field(default=None, description="The engine's KV event stream.")

    @model_validator(mode="after")
    def _hashable(self) -> EngineConfig:
        if self.kv_events is not None and (self.tokenizer is None or len(self.tokenizer) > 180):
            raise ValueError("KV events are hashed by tokenizer: name it (180 characters at most)")
        return self

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


class EndpointConfig(EngineConfig):
    """One engine."""

    instance: Name
    url: Url
    metrics_url: Url | None = Field(
        default=None, description="Base address of the metrics page, where it has a port of its own."
    )
    draining: bool = False
    gpus: Annotated[list[Name], Field(max_length=64)] = Field(
        default=[], description="UUIDs of its own GPUs or MIG devices; empty: any of its host's."
    )

    @field_validator("url", "metrics_url")
    @classmethod
    def _plain(cls, url: str | None) -> str | None:
        return None if url is None else plain_url(url)

    @property
    def model_in_metrics(self) -> str | None:
        """The name to look for in the metrics page."""
        return self.metrics_model or self.served_model


def plain_url(url: str) -> str:
    """A base address without a last slash; raises ValueError on what must not be in one."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ValueError("a URL with a password would be published to the whole fleet; leave it out")
    if parts.query or parts.fragment:
        raise ValueError("the URL is the engine's base address: no query, no fragment")
    return url.rstrip("/")


class DnsConfig(EngineConfig):
    """All addresses behind a DNS name (A and AAAA records), one engine each."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._\-]+$")]
    port: Port
    metrics_port: Port | None = None
    scheme: Literal["http", "https"] = "http"
    prefix: Name | None = Field(default=None, description="Start of the instances' names; default: the name.")
    every_s: Annotated[float, Field(ge=0.05, le=3600)] = 5.0


class KubernetesConfig(EngineConfig):
    """All endpoints of a Kubernetes service, as its EndpointSlices list them."""

    service: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9\-]*[a-z0-9])?$")]
    namespace: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9\-]*[a-z0-9])?$")] | None = (
        Field(default=None, description="Default: the agent's own.")
    )
    port: Annotated[str, Field(max_length=63)] | Port | None = Field(
        default=None, description="Name or number of the slice's port; default: its only one."
    )
    metrics_port: Port | None = None
    scheme: Literal["http", "https"] = "http"
    same_node: bool = Field(
        default=False, description="Only endpoints on the agent's own node (NODE_NAME), for a DaemonSet."
    )
    api: Url | None = Field(default=None, description="The API server; default: the cluster's own.")
    every_s: Annotated[float, Field(ge=0.05, le=3600)] = 5.0


class SourceConfig(BaseModel):
    """The file: a fixed list, and names and services to follow. At least one of them; lists may be empty."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: Annotated[list[EndpointConfig], Field(max_length=10_000)] = []
    dns: Annotated[list[DnsConfig], Field(max_length=1000)] = []
    kubernetes: Annotated[list[KubernetesConfig], Field(max_length=1000)] = []
    gpus: bool | GpusConfig = Field(default=False, description="Look at the GPUs of this host.")
    links: Annotated[list[LinkConfig], Field(max_length=256)] = []
    prefix_salt_file: Path | None = Field(
        default=None, description="The fleet's salt for KV events; default: the environment has it."
    )

    @property
    def gpus_config(self) -> GpusConfig | None:
        """How to look at the GPUs, None where they are not wanted."""
        if isinstance(self.gpus, GpusConfig):
            return self.gpus
        return GpusConfig() if self.gpus else None

    @model_validator(mode="after")
    def _unique(self) -> SourceConfig:
        seen: set[str] = set()
        for endpoint in self.endpoints:
            if endpoint.instance in seen:
                raise ValueError(f"the instance {endpoint.instance} is listed twice")
            seen.add(endpoint.instance)
        links = [(link.from_region, link.to_region) for link in self.links]
        if len(set(links)) != len(links):
            raise ValueError("a link is listed twice")
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
    if not isinstance(raw, dict) or not raw.keys() & {"endpoints", "dns", "kubernetes"}:
        raise ConfigError(f"{where}: expected a mapping with a list `endpoints` (or `dns`, `kubernetes`).")
    try:
        return SourceConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}.") from None


def read_config(path: Path) -> SourceConfig:
    """The configuration in a file; raises ConfigError."""
    return parse_config(text_of(path), str(path))


def text_of(path: Path) -> str:
    """The file's text, bounded; raises ConfigError."""
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
