"""What one emulated instance is: identity, address, hardware, limits; and the YAML file that lists many."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sim.engine.step_model import StepParams, params_named
from sim.engines.errors import EmulatorError

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\"\\|]+$")]


class InstanceSpec(BaseModel):
    """One instance. Every field that vLLM has as an option carries its meaning and default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instance: Name = Field(description="Instance id, unique in the fleet.")
    region: Name = "local"
    model: Name = Field(description="Name under which the model is served.")
    version: Name = Field(default="v1", description="Model version; with the model it names the pool.")
    params: str = Field(default="S2", description="Parameter set of the step model, S1 to S4.")
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65_535, description="0: any free port.")
    speed: float = Field(
        default=1.0, gt=0, le=1_000, allow_inf_nan=False, description="Times as fast as real."
    )
    seed: int = Field(default=0, description="Seed of output lengths and words.")
    kv_tokens: int | None = Field(default=None, ge=1, description="KV cache in tokens; null: the set's own.")
    block_tokens: int = Field(default=16, ge=1, description="Tokens a KV block.")
    max_num_seqs: int = Field(default=256, ge=1)
    max_num_batched_tokens: int = Field(default=8_192, ge=1)
    max_model_len: int = Field(default=131_072, ge=2, description="Prompt plus output, in tokens.")
    max_queued_requests: int | None = Field(
        default=None, ge=1, description="Admission limit: refuse while so many wait; null: no limit."
    )

    @field_validator("params")
    @classmethod
    def _params_exist(cls, value: str) -> str:
        return params_named(value).name

    @model_validator(mode="after")
    def _cache_has_two_blocks(self) -> "InstanceSpec":
        if self.kv_capacity_tokens < 2 * self.block_tokens:
            raise ValueError(
                f"kv_tokens must be at least two blocks ({2 * self.block_tokens} tokens), "
                f"not {self.kv_tokens}"
            )
        return self

    @property
    def step_params(self) -> StepParams:
        """The step model's coefficients."""
        return params_named(self.params)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache holds, in whole blocks."""
        tokens = self.step_params.kv_tokens if self.kv_tokens is None else self.kv_tokens
        return tokens // self.block_tokens * self.block_tokens

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus output: the model's length, or the whole KV cache where that is smaller."""
        return min(self.max_model_len, self.kv_capacity_tokens)

    @property
    def pool(self) -> str:
        """The pool that the instance serves, ``model@version``."""
        return f"{self.model}@{self.version}"


class _SpecFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    instances: list[InstanceSpec] = Field(min_length=1)


def load_specs(path: Path) -> list[InstanceSpec]:
    """Read ``instances: [...]`` from a YAML file; :class:`EmulatorError` says what is wrong with it."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise EmulatorError(f"Can't read the instance file {path}: {error}.") from error
    except yaml.YAMLError as error:
        raise EmulatorError(f"The instance file {path} is not valid YAML: {error}") from error
    try:
        specs = _SpecFile.model_validate(raw).instances
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise EmulatorError(f"The instance file {path} is wrong at {where}: {first['msg']}.") from error
    check_unique(specs)
    return specs


def check_unique(specs: list[InstanceSpec]) -> None:
    """:class:`EmulatorError` when two instances share an id or an address."""
    ids = Counter(spec.instance for spec in specs)
    ports = Counter((spec.host, spec.port) for spec in specs if spec.port)
    for instance, count in ids.items():
        if count > 1:
            raise EmulatorError(f"Instance id {instance!r} is given {count} times; ids must be unique.")
    for (host, port), count in ports.items():
        if count > 1:
            raise EmulatorError(f"Port {port} on {host} is given to {count} instances; each needs its own.")
