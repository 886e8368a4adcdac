"""Parsing of the two OpenAI request bodies, with vLLM's limits and errors."""

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sim.engines.errors import ApiError, bad_request, model_not_found
from sim.engines.spec import InstanceSpec
from sim.engines.text import Generation, plan_generation, tokens_of_chat, tokens_of_text

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


class _StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Body(BaseModel):
    """What both bodies share. Unknown fields are accepted and ignored, as in vLLM."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    temperature: float | None = Field(default=None, ge=0)
    n: int | None = 1
    seed: int | None = None


class _ContentPart(BaseModel):
    type: str
    text: str | None = None


class _Message(BaseModel):
    role: str = Field(min_length=1)
    content: str | list[_ContentPart] | None = None

    def text(self) -> str:
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        if any(part.type != "text" or part.text is None for part in self.content):
            raise bad_request("Only content parts of type 'text' are supported by this engine.", "messages")
        return " ".join(part.text or "" for part in self.content)


class _ChatBody(_Body):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


class _CompletionBody(_Body):
    prompt: str | list[int] | list[str] | list[list[int]]


_BodyT = TypeVar("_BodyT", bound=_Body)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A valid request: how to answer it, and what will be generated."""

    kind: Literal["chat", "completion"]
    generation: Generation
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse_chat(body: bytes, spec: InstanceSpec) -> ParsedRequest:
    """Parse a chat body; :class:`ApiError` (400, 404) says what is wrong."""
    parsed = _validated(_ChatBody, body)
    prompt = tokens_of_chat((message.role, message.text()) for message in parsed.messages)
    max_tokens = parsed.max_completion_tokens or parsed.max_tokens
    return _planned("chat", parsed, prompt, max_tokens or spec.context_tokens - len(prompt), spec)


def parse_completion(body: bytes, spec: InstanceSpec) -> ParsedRequest:
    """Parse a completion body, its prompt a string or token ids; :class:`ApiError` says what is wrong."""
    parsed = _validated(_CompletionBody, body)
    prompt = _single_prompt(parsed.prompt)
    if not prompt:
        raise bad_request("The prompt has no tokens.", "prompt")
    return _planned("completion", parsed, prompt, parsed.max_tokens or DEFAULT_COMPLETION_TOKENS, spec)


def _validated(model: type[_BodyT], body: bytes) -> _BodyT:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _describe(error) from None


def _single_prompt(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str]:
    """The tokens of the one prompt: text, ids, or a list that holds exactly one of those."""
    value: Any = prompt
    if isinstance(value, list) and value and not isinstance(value[0], int):
        if len(value) > 1:
            raise bad_request(f"This engine takes one prompt a request, not {len(value)}.", "prompt")
        value = value[0]
    if isinstance(value, str):
        return tokens_of_text(value)
    return [str(token_id) for token_id in value]


def _planned(
    kind: Literal["chat", "completion"], body: _Body, prompt: list[str], max_tokens: int, spec: InstanceSpec
) -> ParsedRequest:
    if body.model is not None and body.model != spec.model:
        raise model_not_found(body.model)
    if body.n not in (None, 1):
        raise bad_request(f"This engine generates one choice a request, not n={body.n}.", "n")
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be given when `stream=True`.", "stream_options")
    _check_length(len(prompt), max_tokens, spec.context_tokens)
    options = body.stream_options or _StreamOptions()
    return ParsedRequest(
        kind=kind,
        generation=plan_generation(
            prompt,
            max_tokens=max_tokens,
            ignore_eos=body.ignore_eos,
            block_tokens=spec.block_tokens,
            instance_seed=spec.seed,
            request_seed=body.seed,
        ),
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
    )


def _check_length(prompt_tokens: int, max_tokens: int, context_tokens: int) -> None:
    if prompt_tokens >= context_tokens or prompt_tokens + max_tokens > context_tokens:
        raise bad_request(
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{max(max_tokens, 1)} output tokens and your prompt contains {prompt_tokens} input tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens.",
            "input_tokens",
        )


def _describe(error: ValidationError) -> ApiError:
    """The first problem, by field; never the offending value, which may be a prompt."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return bad_request("The body is not valid JSON.")
    return bad_request(f"{where or 'body'}: {first['msg']}.", where or None)
