"""A random Llama in a GGUF file: no knowledge, but a real tokenizer, real attention and a real KV cache.

Every word of the workload's synthetic prompts (sim.workloads.prompts) is one token, so a prompt of n words
is n tokens here too (and the beginning-of-sequence token). Answers are words as well: a token is always a
whole piece of text, never a part of a UTF-8 character that the server would hold back.

The format is GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), the names of the tensors are
those of llama.cpp's architecture ``llama``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import StackError
from sim.workloads.prompts import WORDS

if TYPE_CHECKING:
    import gguf
    import numpy as np
    from numpy.typing import NDArray

    Tensor = NDArray[np.float32]

CONTEXT_TOKENS = 4096
"""Prompt and answer together, of one request."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in SentencePiece's vocabularies
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # token types of llama.cpp
_DEVIATION = 0.05
_SUPPRESSED = -200.0
"""Output weight of the constant dimension for tokens that are no words.

The constant dimension is divided by the residual's norm, which grows with what the blocks add and differs
with the context; the weight is so large that also the largest norm leaves hundreds of logits.
"""
_CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@dataclass(frozen=True)
class ModelShape:
    """How big a model is: the wider and deeper, the longer a token takes."""

    width: int
    """Length of an embedding; divides into ``heads`` heads of even length."""
    blocks: int
    heads: int
    feed_forward: int
    about: str


MODEL_SIZES: Mapping[str, ModelShape] = {
    "tiny": ModelShape(64, 2, 4, 128, "0.6 MB, thousands of tokens a second on one core"),
    "small": ModelShape(384, 6, 6, 1024, "44 MB, a hundred or two tokens a second on one core"),
}
"""Sizes by name; ``small`` keeps a server busy for seconds."""


def write_model(path: Path, size: str = "tiny", *, seed: int = 0, words: Sequence[str] = WORDS) -> Path:
    """Write the model of this size to ``path`` (GGUF, float32), whole or not at all; returns the path.

    The seed fixes every weight. Raises StackError where the size is unknown, the ``gguf`` package is missing
    or the file can't be written.
    """
    shape = MODEL_SIZES.get(size)
    if shape is None:
        raise StackError(f"There is no model size {size!r}; choose {' or '.join(MODEL_SIZES)}.")
    try:
        import gguf
    except ImportError:
        raise StackError(
            "The model for llama.cpp can't be written: the gguf package is not installed; install "
            "tokenfleet[real-engine]."
        ) from None
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(draft, "llama")
    tokens, types, scores = vocabulary(words)
    _add_hyperparameters(writer, shape, len(tokens), size)
    _add_tokenizer(writer, tokens, types, scores)
    is_word = [kind == _NORMAL and text[1:] in set(words) for text, kind in zip(tokens, types, strict=True)]
    for name, tensor in weights(shape, is_word, seed).items():
        writer.add_tensor(name, tensor)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StackError(f"The model can't be written to {path}: {error.strerror or error}.") from error
    return path


def vocabulary(words: Sequence[str]) -> tuple[list[str], list[int], list[float]]:
    """Tokens, their types and their scores, in the order of ids.

    SentencePiece merges neighbours into longer pieces, so each word's beginnings are tokens too. All other
    text falls back to its bytes.
    """
    pieces = {_SPACE: None}  # a dict keeps the order
    for length in range(1, max(map(len, words)) + 1):
        pieces |= {_SPACE + word[:length]: None for word in words}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(pieces)]
    # The higher score is merged first: longer pieces, whatever stands beside them.
    scores = [0.0] * 3 + [-1000.0] * 256 + [float(len(piece)) for piece in pieces]
    return tokens, types, scores


def weights(shape: ModelShape, is_word: Sequence[bool], seed: int) -> dict[str, Tensor]:
    """Tensors by name, as (outputs, inputs); ``is_word`` says for each token whether it may be answered.

    Dimension 0 of the residual stream is 1 for every token and no block adds to it; through it the output
    layer lowers the logits of all that is no word.
    """
    import numpy as np

    rng = np.random.default_rng(seed)

    def random(*dimensions: int) -> Tensor:
        return rng.standard_normal(dimensions, dtype=np.float32) * np.float32(_DEVIATION)

    def to_residual(inputs: int) -> Tensor:
        tensor = random(shape.width, inputs)
        tensor[0] = 0.0
        return tensor

    ones = np.ones(shape.width, np.float32)
    embedding, output = random(len(is_word), shape.width), random(len(is_word), shape.width)
    embedding[:, 0] = 1.0
    output[:, 0] = np.where(is_word, 0.0, _SUPPRESSED)
    tensors = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": output}
    for block in range(shape.blocks):
        own = {
            "attn_norm": ones,
            "attn_q": random(shape.width, shape.width),
            "attn_k": random(shape.width, shape.width),
            "attn_v": random(shape.width, shape.width),
            "attn_output": to_residual(shape.width),
            "ffn_norm": ones,
            "ffn_gate": random(shape.feed_forward, shape.width),
            "ffn_up": random(shape.feed_forward, shape.width),
            "ffn_down": to_residual(shape.feed_forward),
        }
        tensors |= {f"blk.{block}.{name}.weight": tensor for name, tensor in own.items()}
    return tensors


def _add_hyperparameters(writer: gguf.GGUFWriter, shape: ModelShape, tokens: int, size: str) -> None:
    import gguf

    writer.add_name(f"random-{size}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.blocks)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_vocab_size(tokens)


def _add_tokenizer(
    writer: gguf.GGUFWriter, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores(scores)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(_CHAT_TEMPLATE)
